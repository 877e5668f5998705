"""A disk that takes no large files, for what is to be written whole or not at all."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """Have no file of this process grow beyond a size while the body runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))  # Python ignores the signal
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
