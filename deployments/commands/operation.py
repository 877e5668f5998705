"""Commands that run servers and workers: up, down, status and worker."""

import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from digen_core.errors import UserError
from digen_core.inputs.text import number_of

PORTS = (4200, 5000, 8786, 8787)

HOSTS: Final = "use 0.0.0.0, or an IPv4 address or name of this host"


def up(
    cluster: str = "2-cores",
    /,
    *,
    add: Annotated[bool, Parameter(negative="")] = False,
    workers: bool = True,
    host: str = "127.0.0.1",
    tls: bool = True,
    prefect_auth: bool = True,
    mlflow_auth: bool | None = None,
    names: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    deployments: Path | None = None,
    ports: tuple[int, int, int, int] = PORTS,
) -> int:
    """Start Prefect, MLflow, a Dask cluster and a Prefect worker, and register the deployments.

    Example: digen up
    Example: digen up 2-cores --host 0.0.0.0
    Example: digen up 2-cores --add

    What runs already is kept. 'digen down' ends what was started. Then, in this folder:
    prefect deployment run post-train/shapes --watch

    Args:
        cluster: The workers to start: a name in deployments/clusters, or a TOML file like those.
        add: Start the cluster's workers for this machine beside those that are up, under names and
            on GPUs that are free; a run that goes on takes them in. Other options stay as they are.
        workers: Start the cluster's workers here, save those for which the file names hosts. 'digen
            cluster show' prints what starts them elsewhere.
        host: Address to listen on; 0.0.0.0 lets other machines in.
        tls: Encrypt and authenticate what the parts of Dask say to each other. Without it every
            user of this machine, and of the network with --host, can run code as you; with it a
            task costs up to 1 ms more, and 100 MB from worker to worker 0.1 s more.
        prefect_auth: Let Prefect ask for a password, which the printed link gives to a browser.
        mlflow_auth: Let MLflow ask for a password, at 0.1 s of CPU for each request; default: where
            other machines are let in.
        names: More names by which browsers and programs call the servers, as behind a proxy; to
            others they do not answer.
        deployments: File of the deployments; default: that which digen ships.
        ports: Four, of Prefect, MLflow, the Dask scheduler and its dashboard; where one is taken,
            another is used.
    """
    if any(not 0 < port < 65536 for port in ports):
        raise UserError(f"--ports are {' '.join(map(str, ports))}; use 1 to 65535")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        raise UserError(f"--host is {host!r}; {HOSTS}")
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError as error:
        why = error.strerror
        raise UserError(f"--host is {host}, where this cannot listen ({why}); {HOSTS}") from error
    for extra in names or []:
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", extra):
            raise UserError(f"--names has {extra!r}; give names of hosts, without scheme or port")

    from deployments.local import failures_in_one_line
    from deployments.operation.state import Options
    from deployments.operation.up import add as start_more
    from deployments.operation.up import up as start_all
    from digen_core.inputs.shipped import data_folder
    from tasks.cluster.listening import is_loopback

    options = Options(
        cluster=cluster,
        workers=workers,
        host=host,
        tls=tls,
        prefect_auth=prefect_auth,
        mlflow_auth=not is_loopback(host) if mlflow_auth is None else mlflow_auth,
        names=tuple(names or ()),
        deployments=str(deployments or data_folder("prefect.yaml")),
        ports=ports,
    )
    with failures_in_one_line("digen up"):
        state = start_more(cluster, _say) if add else start_all(options, _say)

    from deployments.operation.describe import describe

    sys.stdout.write(describe(state, is_terminal=sys.stdout.isatty()))
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
    what = f"{number_of(ended, 'process', 'processes')} ended"
    sys.stdout.write(f"{what if ended else 'nothing was up in this folder'}\n")
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
    sys.stdout.write(describe(state, is_terminal=sys.stdout.isatty()))
    return 0 if all(service.process for service in state.services) else 1


def worker(
    scheduler: str | None = None,
    /,
    *,
    name: str,
    role: Literal["rollout", "trainer", "both"] | None = None,
    pool: str | None = None,
    site: str = "",
    threads: int = 1,
    members: int = 1,
    ranks: str = "",
    spare_for: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    cuda: Annotated[bool, Parameter(negative="")] = False,
    insecure: Annotated[bool, Parameter(negative="")] = False,
    leave: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Start a worker that joins a Dask cluster, until it is stopped; or have one leave.

    Example: digen worker tls://10.0.0.1:8786 --name gpu-0 --role rollout
    Example: digen worker tls://10.0.0.1:8786 --name room --members 4 --ranks 2-3
    Example: digen worker tls://10.0.0.1:8786 --name b9 --spare-for room-0 room-1.2
    Example: digen worker tls://10.0.0.1:8786 --name gpu-0 --leave

    It listens on the address by which it reaches the scheduler. With a scheduler of another machine
    that takes TLS, tls://..., whose keys are in the variables of runs/up/env: set -a; . runs/up/env

    Args:
        scheduler: Address of the Dask scheduler; default: that in DASK_SCHEDULER_ADDRESS.
        name: Of the worker in reports and pictures; no two of a cluster may have the same.
        role: What it does: rollout generates and scores, trainer trains; default: both.
        pool: It only scores, for rewards whose ``pool`` has this name.
        site: Where it is. Between sites a version of the weights crosses once, to the first worker
            that pulls it; the others there pull from that.
        threads: CPU threads.
        members: Start a gang of so many workers, which are one device on as many GPUs.
        ranks: Start only these members of the gang here, such as 0-1, and the others, by the same
            name, on other hosts; default: all. Member 0 leads: its role and site are the gang's.
        spare_for: It is idle until it takes the place of a member that these gangs have lost for
            good: of any but the first of a gang, or of one that is named, such as room-1.2.
        cuda: Start one worker for each GPU that is visible, by dask-cuda.
        insecure: Listen on the network without TLS, too. Whoever reaches this machine there can
            then run code on it: only for a network in which nobody else is.
        leave: Have the worker of this name leave, wherever it runs, and wait until it is gone. A
            run that has it gives it no work any more, and lets it go when it needs nothing that it
            holds: when the iterations that it has worked for are over. Nothing is sampled, scored
            or trained again.
    """
    import os

    if scheduler is None and "DASK_SCHEDULER_ADDRESS" not in os.environ:
        raise UserError("which scheduler? For example: digen worker tls://10.0.0.1:8786 --name a")
    _check_worker(name, pool, site, threads, members)
    if spare_for is not None:
        others = {"--role": role, "--pool": pool, "--site": site, "--ranks": ranks}
        _check_spare(name, spare_for, others | {"--members": members > 1})
    os.environ["OMP_NUM_THREADS"] = str(threads)

    from digen_core.planning.clusters.groups import ROLES
    from digen_core.preflight.network import parse_address

    label = "the scheduler's address" if scheduler else "DASK_SCHEDULER_ADDRESS"
    address = scheduler or os.environ["DASK_SCHEDULER_ADDRESS"]
    parse_address(label, address)

    from deployments.local import failures_in_one_line
    from tasks.cluster.spares import spare_resources
    from tasks.worker.process import resources_of, run_worker

    if leave:
        from deployments.operation.leaving import leave_cluster

        with failures_in_one_line("digen worker --leave"):
            leave_cluster(address, name, _say)
        sys.stdout.write(f"{name} has left\n")
        return 0
    declared = ROLES[role or "both"] if pool is None else {pool}
    resources = resources_of(spare_resources(spare_for) if spare_for else declared, site)
    with failures_in_one_line("the worker"):
        named = [address, "--name", name, "--resources", resources]
        run_worker(named, members=members, ranks=ranks, cuda=cuda, insecure=insecure)
    return 0


def _check_worker(name: str, pool: str | None, site: str, threads: int, members: int) -> None:
    """Check what a worker is asked to be."""
    if threads < 1:
        raise UserError(f"--threads is {threads}; use 1 or more")
    if not 1 <= members <= 64:
        raise UserError(f"--members is {members}; use 1 to 64, a GPU for each")
    if members > 1 and pool is not None:
        raise UserError("--members is for devices that hold the model; leave out --pool")

    from digen_core.planning.clusters.groups import ROLES, check_name

    check_name("--name", name)
    if pool is not None:
        check_name("--pool", pool)
    if site:
        check_name("--site", site)
    if pool in ROLES:
        raise UserError(f"--pool is {pool}, which is a role; use --role {pool}, or another name")


def _check_spare(name: str, spare_for: Sequence[str], others: Mapping[str, object]) -> None:
    """Check what a spare is asked to be.

    Args:
        name: of the worker.
        spare_for: the gangs and members whose place it may take.
        others: what else is said, which a spare is not, by option.
    """
    from digen_core.planning.clusters.groups import check_name

    if not spare_for:
        raise UserError("--spare-for names nobody; name gangs, or members such as room-1.2")
    for place in spare_for:
        check_name("--spare-for", place)
        if place.endswith(".0"):
            raise UserError(
                f"--spare-for names {place}, the first of a gang: it leads, and nobody takes its "
                "place; name the gang, or another member"
            )
        gang = re.sub(r"\.\d+$", "", place)
        if name in (place, gang) or re.fullmatch(
            rf"({re.escape(place)}|{re.escape(gang)})\.\d+", name
        ):
            raise UserError(
                f"--name is {name}, which is the name of a member of {gang}, for which it is to be "
                "a spare; use another one"
            )
    for option, value in others.items():
        if value:
            raise UserError(
                f"--spare-for is for a worker that takes the place of a member of a gang, whose "
                f"role and site are its leader's; leave out {option}"
            )


def _say(text: str) -> None:
    sys.stdout.write(f"{text} ...\n")
    sys.stdout.flush()
