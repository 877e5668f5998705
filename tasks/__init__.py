"""Prefect tasks: one module of task bodies for each kind of work; folders for what runs them."""
