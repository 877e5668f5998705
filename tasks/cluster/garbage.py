"""Garbage collection of processes that import much: rare, and not once more at their end.

It stays rare for as long as the process lives: tensors of models are not in cycles.
"""

import atexit
import gc
from typing import Final

PRELOAD: Final = "tasks.cluster.preloaded"
"""The module that has a process do so by being imported."""

THRESHOLDS: Final = (50_000, 20, 20)
"""Of objects before the youngest are looked through, and of such looks before older ones are.
Python's own 700 has the hundreds of thousands that imports make looked through again and again."""


def collect_rarely() -> None:
    """Look for garbage less often from now on, and not when this process ends.

    To import what `digen train` does and to end takes 6.1 s of a core then, in place of 8.9.
    """
    gc.set_threshold(*THRESHOLDS)
    atexit.register(gc.freeze)
