"""Batches as tests write them."""

from digen_core.control.protocol import Batch, Fragment


def alone(fragment: Fragment) -> Batch:
    """Return a batch of one fragment."""
    return Batch((fragment,))
