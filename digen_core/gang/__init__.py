"""The gang: the workers that are one device, and how they hold and compute one model together."""
