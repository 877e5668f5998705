"""Timelines of iterations, drawn in a process of their own while the run continues.

Drawing is up to a second of Python, which in a thread holds back the loop that feeds the devices.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from digen_core import PYTHON
from digen_core.control.protocol import Device
from digen_core.records import Span
from digen_core.trace.gaps import idle_gaps
from digen_core.trace.page import png_of
from digen_core.trace.timeline import draw_timeline
from digen_core.trace.windows import iteration_windows

logger = logging.getLogger(__name__)

EVERY: Final = 10
"""Of a run's iterations the first, each tenth after it and the last one are drawn."""
COLOURS: Final = 64
"""Of the picture, which is embedded in pages: it takes a third of the bytes of all colours."""
TIMEOUT_SECONDS: Final = 60.0


def is_drawn(iteration: int, num_iterations: int) -> bool:
    """Return whether a run draws the timeline of an iteration."""
    return iteration % EVERY == 0 or iteration + 1 == num_iterations


def draw_apart(spans: Sequence[Span], devices: Sequence[Device], iteration: int) -> Future[bytes]:
    """Begin to draw the timeline of an iteration, and return what will be its PNG.

    It is empty if the picture could not be drawn; a warning says why.

    Args:
        spans: of the iteration and of those around it.
        devices: lanes, from the top.
        iteration: the one to draw.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="timeline")
    future = executor.submit(_draw, pickle.dumps((spans, devices, iteration)))
    executor.shutdown(wait=False)
    return future


def _draw(request: bytes) -> bytes:
    command = [*PYTHON, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, check=True, timeout=TIMEOUT_SECONDS
        )
    except (subprocess.SubprocessError, OSError) as error:
        last = (getattr(error, "stderr", None) or b"").decode().strip().rpartition("\n")[2]
        logger.warning("A timeline was not drawn; the run goes on without it: %s", last or error)
        return b""
    return done.stdout


def main() -> None:
    """Read what to draw, and write the PNG."""
    os.nice(10)  # the devices of a local run are processes of the same machine
    spans, devices, iteration = pickle.load(sys.stdin.buffer)
    window = iteration_windows(spans)[iteration]
    gaps = idle_gaps(spans, devices, window)
    figure = draw_timeline(spans, gaps, devices, window, f"iteration {iteration + 1}")
    sys.stdout.buffer.write(png_of(figure, COLOURS))


if __name__ == "__main__":
    main()
