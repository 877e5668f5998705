"""Tiny pipelines of every family, built offline."""

from digen_core.models.tiny.pipelines import build_tiny

__all__ = ["build_tiny"]
