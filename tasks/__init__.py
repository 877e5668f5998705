"""Prefect tasks: one core call each."""
