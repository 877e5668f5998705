"""Commands that run servers and workers: up, down, status and worker."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from digen_core.config import ConfigError

Switch = bool | None
PORTS = (4200, 5000, 8786, 8787)


def up(
    cluster: str = "2-cores",
    /,
    *,
    workers: bool = True,
    host: str = "127.0.0.1",
    tls: Switch = None,
    prefect_auth: Switch = None,
    mlflow_auth: Switch = None,
    deployments: Path | None = None,
    ports: tuple[int, int, int, int] = PORTS,
) -> int:
    """Start Prefect, MLflow, a Dask cluster and a Prefect worker, and register the deployments.

    Example: digen up
    Example: digen up 2-cores --host 0.0.0.0

    What runs already is kept. 'digen down' ends what was started. Then, in this folder:
    prefect deployment run post-train/shapes --watch

    Args:
        cluster: The workers to start: a name in deployments/clusters, or a TOML file like those.
        workers: Start the cluster's workers here, save those for which the file names hosts. 'digen
            cluster show' prints what starts them elsewhere.
        host: Address to listen on; 0.0.0.0 lets other machines in.
        tls: Encrypt and authenticate what the parts of Dask say to each other. This and the next
            two are on where other machines are let in, else off.
        prefect_auth: Let Prefect ask for a password.
        mlflow_auth: Let MLflow ask for a password.
        deployments: File of the deployments; default: that which digen ships.
        ports: Four, of Prefect, MLflow, the Dask scheduler and its dashboard; where one is taken,
            another is used.
    """
    if any(not 0 < port < 65536 for port in ports):
        raise ConfigError(f"--ports are {' '.join(map(str, ports))}; use 1 to 65535")

    from deployments.local import failures_in_one_line
    from deployments.operation.access import is_loopback
    from deployments.operation.state import Options
    from deployments.operation.up import up as start_all
    from digen_core.shipped import data_folder

    is_open = not is_loopback(host)
    options = Options(
        cluster=cluster,
        workers=workers,
        host=host,
        tls=is_open if tls is None else tls,
        prefect_auth=is_open if prefect_auth is None else prefect_auth,
        mlflow_auth=is_open if mlflow_auth is None else mlflow_auth,
        deployments=str(deployments or data_folder("prefect.yaml")),
        ports=ports,
    )
    with failures_in_one_line("digen up"):
        state = start_all(options, _say)

    from deployments.operation.describe import describe

    sys.stdout.write(describe(state))
    return 0


def down() -> int:
    """End what 'digen up' started in this folder, and nothing else.

    Example: digen down

    A training that runs is cancelled.
    """
    from deployments.local import failures_in_one_line
    from deployments.operation.up import down as end_all

    with failures_in_one_line("digen down"):
        ended = end_all(_say)
    sys.stdout.write(f"{ended} processes ended\n" if ended else "nothing was up in this folder\n")
    return 0


def status() -> int:
    """Say what 'digen up' started in this folder, whether it still runs, and where it is.

    Example: digen status

    The exit code is 1 if something is missing.
    """
    from deployments.operation.describe import describe
    from deployments.operation.state import load_state

    state = load_state()
    if state is None:
        sys.stdout.write("nothing is up in this folder; 'digen up' starts everything\n")
        return 1
    sys.stdout.write(describe(state))
    return 0 if all(service.process for service in state.services) else 1


def worker(
    scheduler: str | None = None,
    /,
    *,
    name: str,
    role: Literal["rollout", "trainer", "both"] = "both",
    pool: str | None = None,
    threads: int = 1,
    cuda: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Start a worker that joins a Dask cluster, until it is stopped.

    Example: digen worker tcp://10.0.0.1:8786 --name gpu-0 --role rollout

    Args:
        scheduler: Address of the Dask scheduler; default: that in DASK_SCHEDULER_ADDRESS.
        name: Of the worker in reports and pictures; no two of a cluster may have the same.
        role: What it does: rollout generates and scores, trainer trains.
        pool: It only scores, for rewards whose ``pool`` has this name.
        threads: CPU threads.
        cuda: Start one worker for each GPU that is visible, by dask-cuda.
    """
    import os

    if scheduler is None and "DASK_SCHEDULER_ADDRESS" not in os.environ:
        raise ConfigError("which scheduler? For example: digen worker tcp://10.0.0.1:8786 --name a")
    if threads < 1:
        raise ConfigError(f"--threads is {threads}; use 1 or more")
    os.environ["OMP_NUM_THREADS"] = str(threads)

    from digen_core.planning.groups import ROLES

    if pool in ROLES:
        raise ConfigError(f"--pool is {pool}, which is a role; use --role {pool}, or another name")
    from deployments.local import failures_in_one_line
    from digen_core.reachable import parse_address
    from tasks.worker import resources_of, run_worker

    label = "the scheduler's address" if scheduler else "DASK_SCHEDULER_ADDRESS"
    parse_address(label, scheduler or os.environ["DASK_SCHEDULER_ADDRESS"])
    arguments = [] if scheduler is None else [scheduler]
    resources = resources_of(ROLES[role] if pool is None else {pool})
    with failures_in_one_line("the worker"):
        try:
            run_worker([*arguments, "--name", name, "--resources", resources], cuda=cuda)
        except RuntimeError as error:  # that it did not start; its cause says why
            raise error.__cause__ or error from None
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text} ...\n")
    sys.stdout.flush()
