"""Prefect flows: the story of a run."""
