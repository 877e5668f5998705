"""The core library: models, algorithms, control. Knows no orchestrator.

Importing it prepares the environment of the process: see `prepare_environment`.
"""

import os
import sys
from typing import Final

NO_TELEMETRY: Final = {
    "DO_NOT_TRACK": "true",  # Prefect, and whatever heeds it
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime, which diffusers loads: it reports to Microsoft
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Variables by which libraries do not report to their makers what is done with them. Without a
network each start would also wait for that."""

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
"""Hosts that no proxy leads to: there would be its own."""

PYTHON: Final = (sys.executable, "-P")
"""Begins the commands of digen's own processes: the folder that digen is called in, which may have
packages of the same names, is no place to import from. Workers of a cluster file do import from it,
as Prefect lets runs of deployments."""


def prepare_environment() -> None:
    """Prepare the variables of this process and of what it starts, before libraries read them.

    Set what the user has not set, and add this machine to what is reached without a proxy.
    """
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    if hosts != ["*"]:
        hosts += [host for host in LOOPBACK if host not in hosts]
    os.environ.update(dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts)))


prepare_environment()
