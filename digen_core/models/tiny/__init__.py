"""Tiny pipelines of every family, built offline."""
