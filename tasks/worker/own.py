"""Preloaded by the workers that a run starts for itself, which Ctrl-C reaches with the run."""

import signal

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Leave Ctrl-C to the run, which ends its workers when it has ended itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
