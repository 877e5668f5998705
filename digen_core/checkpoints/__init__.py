"""Checkpoints: manifests, tensors, retention, resume, and a run's state as its folder shows it."""
