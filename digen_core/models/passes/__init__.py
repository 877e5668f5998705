"""Ways through transformers of diffusers that are digen's own, over their modules."""
