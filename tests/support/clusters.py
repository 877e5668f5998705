"""Clusters in the process of a test."""

from typing import Any

from distributed import LocalCluster


def threads_cluster(num_workers: int = 1, **options: Any) -> LocalCluster:
    """Return a cluster whose workers are threads of this process, without a dashboard.

    Its scheduler answers at a port that is free: others may have one on this machine.
    """
    options["scheduler_kwargs"] = {
        "dashboard_address": "127.0.0.1:0",
        **options.get("scheduler_kwargs", {}),
    }
    return LocalCluster(
        n_workers=num_workers,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        **options,
    )
