"""Preloaded by the workers that a run starts for itself: what ends the run reaches them, too."""

import logging
import signal

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Leave Ctrl-C, and a closed terminal, to the run, which ends its workers when it has ended.

    They share its terminal, where the run says which worker is lost: what Dask says of the
    connections that end with one, a traceback for each, is not shown.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for handler in logging.getLogger("distributed").handlers:
        handler.addFilter(is_no_lost_connection)


def is_no_lost_connection(record: logging.LogRecord) -> bool:
    """Say whether a line of a worker's log is of something else than a connection that ended."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, OSError)
