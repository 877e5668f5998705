"""Measure what this process uses of its machine; the receipts of its tasks carry it to the flow.

The GPU is looked at by a thread, each second: between two tasks it is idle. Its utilisation needs
the package ``nvidia-ml-py``; without it only its memory is known.
"""

from collections.abc import Callable
from functools import cache
from threading import Lock, Thread
from time import monotonic, process_time, sleep
from typing import Final

import psutil
import torch

from digen_core.trace.usage import Usage

PERIOD_SECONDS: Final = 1.0


class UsageMeter:
    """What was used since it was last read. Safe to use from several threads."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._lock = Lock()
        self._time, self._cpu = monotonic(), process_time()
        self._gpu_percent: list[float] = []
        self._gpu_memory = 0
        if torch.cuda.is_available():
            Thread(target=self._watch, name="gpu-usage", daemon=True).start()

    def read(self) -> Usage | None:
        """Return what was used since the last time; None if no time has passed."""
        with self._lock:
            now, cpu = monotonic(), process_time()
            seconds, cpu_seconds = now - self._time, cpu - self._cpu
            if seconds <= 0:
                return None
            self._time, self._cpu = now, cpu
            percent, self._gpu_percent = self._gpu_percent, []
            memory, self._gpu_memory = self._gpu_memory, 0
        resident = self._process.memory_info().rss
        return Usage(seconds, cpu_seconds, resident, tuple(percent), memory)

    def _watch(self) -> None:
        utilization: Callable[[], int] | None = torch.cuda.utilization
        while True:
            free, total = torch.cuda.mem_get_info()
            percent = None
            if utilization is not None:
                try:
                    percent = utilization()
                except Exception:  # the package is missing, or the driver does not say
                    utilization = None
            with self._lock:
                self._gpu_memory = max(self._gpu_memory, total - free)
                if percent is not None:
                    self._gpu_percent.append(percent)
            sleep(PERIOD_SECONDS)


@cache
def usage_meter() -> UsageMeter:
    """Return the meter of this process."""
    return UsageMeter()
