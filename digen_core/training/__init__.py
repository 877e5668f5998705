"""Training: the gradient of a pack, the optimizer step, pretraining of the embedded model."""
