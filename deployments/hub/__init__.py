"""A trained adapter on the Hugging Face hub: the folder for it, and how it gets there."""
