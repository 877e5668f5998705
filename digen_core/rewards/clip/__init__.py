"""Rewards that see images, and prompts, as a CLIP model does, and that model."""
