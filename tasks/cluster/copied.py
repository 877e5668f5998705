"""Preloaded by workers that are copies of one process, whose Prefect has the settings of that one.

Prefect reads the environment when it is imported, and that of a worker is set after the copy is
made.
"""

import os

from distributed import Worker
from prefect.context import refresh_global_settings_context
from prefect.logging.configuration import setup_logging

from tasks.cluster.start_method import SAFE_PATH

os.environ.pop(SAFE_PATH, None)  # it was for what is imported ahead, not for what rewards may start


def dask_setup(worker: Worker) -> None:
    """Have Prefect read the environment of this process."""
    refresh_global_settings_context()
    setup_logging()
