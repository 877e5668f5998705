"""Measure what this process uses of its machine; the receipts of its tasks carry it to the flow.

The GPU is looked at by a thread, each second: between two tasks it is idle. Its utilisation and its
power need the package ``nvidia-ml-py``; without it only its memory is known. Energy is the power,
which the driver gives as a mean of up to a second, times the time between two looks.
"""

from collections.abc import Callable
from functools import cache
from threading import Lock, Thread
from time import monotonic, process_time, sleep
from typing import Final

import psutil
import torch

from digen_core.trace.usage import Usage
from tasks.cluster.gpus import card

PERIOD_SECONDS: Final = 1.0


class UsageMeter:
    """What was used since it was last read. Safe to use from several threads."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._lock = Lock()
        self._time, self._cpu = monotonic(), process_time()
        self._gpu_percent: list[float] = []
        self._gpu_memory = 0
        self._joules: float | None = None
        self._looked = self._time
        self._card = card()
        self._utilization = _Sensor(torch.cuda.utilization)
        self._power = _Sensor(torch.cuda.power_draw)
        if self._card:
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
            joules = self._joules
            self._joules = None if joules is None else 0.0
        resident = self._process.memory_info().rss
        return Usage(seconds, cpu_seconds, resident, tuple(percent), memory, joules, self._card)

    def look(self) -> None:
        """Look at the GPU."""
        free, total = torch.cuda.mem_get_info()
        percent, milliwatts = self._utilization.read(), self._power.read()
        with self._lock:
            now = monotonic()
            seconds, self._looked = now - self._looked, now
            self._gpu_memory = max(self._gpu_memory, total - free)
            if percent is not None:
                self._gpu_percent.append(percent)
            if milliwatts is None:
                self._joules = None
            else:
                self._joules = (self._joules or 0.0) + milliwatts / 1000 * seconds

    def _watch(self) -> None:
        while True:
            self.look()
            sleep(PERIOD_SECONDS)


class _Sensor:
    """What the driver tells of the GPU, as long as it does."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask: Callable[[], int] | None = ask

    def read(self) -> int | None:
        """Return it; None once it is clear that nothing tells."""
        if self._ask is None:
            return None
        try:
            return self._ask()
        except Exception:  # the package is missing, or the driver does not say
            self._ask = None
            return None


@cache
def usage_meter() -> UsageMeter:
    """Return the meter of this process."""
    return UsageMeter()
