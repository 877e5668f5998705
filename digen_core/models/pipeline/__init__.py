"""Policies around the pipelines of diffusers: the base of all families."""
