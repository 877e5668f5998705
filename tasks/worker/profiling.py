"""Profiles of tasks: which operators and kernels one took, as torch's profiler sees it.

| RUN/profiles/iteration-0004/worker-0-train.json.gz   a trace, for Perfetto or chrome://tracing
| RUN/profiles/iteration-0004/worker-0-train.txt       its operators, those that took longest first
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final
from urllib.parse import quote

import torch
from torch.profiler import ProfilerActivity, profile

from digen_core.transport.files import replace_text, written_whole
from digen_core.transport.profiles import folder_of
from tasks.worker.engine import Engine

ROWS: Final = 40
"""Operators of the table."""

_profiler = Lock()  # torch has one for the process


@contextmanager
def profiled(engine: Engine, kind: str, iteration: int, run_dir: Path) -> Iterator[None]:
    """Run the body; keep its profile, if the config asks for the iteration's.

    Of each kind a device keeps that of the first task that succeeds.

    Args:
        engine: of the run on this worker.
        kind: of the task, for the names of the files.
        iteration: its index.
        run_dir: folder of the run.
    """
    name = f"{quote(engine.device_name, safe='')}-{kind}"
    trace = folder_of(run_dir, iteration) / f"{name}.json.gz"
    if iteration + 1 not in engine.config.tracking.profile_iterations or trace.exists():
        yield
        return
    if not _profiler.acquire(blocking=False):  # another task of this process has it
        yield
        return
    try:
        with profile(record_shapes=True, profile_memory=True, acc_events=True) as found:
            yield
        _write(found, trace)
    finally:
        _profiler.release()


def _write(found: profile, trace: Path) -> None:
    trace.parent.mkdir(parents=True, exist_ok=True)
    on_gpu = ProfilerActivity.CUDA in found.activities and torch.cuda.is_available()
    by = f"self_{'device' if on_gpu else 'cpu'}_time_total"
    table = found.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=60)
    replace_text(trace.with_name(trace.name.replace(".json.gz", ".txt")), table)
    with written_whole(trace) as unfinished:
        own = unfinished.with_name(f"{unfinished.name}.json.gz")  # what it ends with says how
        try:
            found.export_chrome_trace(str(own))
            own.replace(unfinished)
        finally:
            own.unlink(missing_ok=True)
