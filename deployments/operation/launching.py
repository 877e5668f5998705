"""Launch scripts for a cluster file's workers elsewhere: ssh, SLURM, Kubernetes, CUDA.

The scripts take addresses, keys and passwords from the file that ``digen up`` writes; they run in
this folder, with this Python, so hosts share both with this machine.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from deployments.operation import kubernetes, slurm
from deployments.operation.state import FOLDER, USE_ENVIRONMENT
from deployments.operation.workers import Worker, workers_of
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import Cluster

Way = Literal["ssh", "cuda", "slurm", "kubernetes"]


def files_for(cluster: Cluster, way: Way, tls: bool) -> dict[str, str]:
    """Return the files that start a cluster's workers, by name.

    Args:
        cluster: as its file describes it.
        way: what starts them.
        tls: whether the parts of Dask are to use TLS; a script takes the keys from the environment.

    Raises:
        UserError: the cluster file lacks what this way needs.
    """
    match way:
        case "ssh":
            return {"workers.sh": _script(_ssh_lines(cluster, tls))}
        case "cuda":
            return {"workers.sh": _script(_cuda_lines(cluster, tls))}
        case "slurm":
            return slurm.scripts(cluster, tls)
        case "kubernetes":
            return {kubernetes.FILE: kubernetes.text(cluster, tls)}


def _script(lines: Iterator[str]) -> str:
    return "\n".join(["#!/usr/bin/env bash", "set -e", *lines]) + "\n"


def _ssh_lines(cluster: Cluster, tls: bool) -> Iterator[str]:
    """Yield a line for each worker, or for what a host has of a gang."""
    for worker in _elsewhere(cluster):
        yield _over_ssh(worker, _command(worker, worker.environment, tls))


def _cuda_lines(cluster: Cluster, tls: bool) -> Iterator[str]:
    """Yield a line for each group on each host: dask-cuda starts a worker for each of its GPUs."""
    by_host: dict[tuple[int | str, str | None], list[Worker]] = {}
    for worker in _elsewhere(cluster):
        if not worker.gpus:
            kind = worker.group.kind
            raise UserError(f"devices of kind {kind} are no GPUs; set their cuda = true")
        # A gang starts its own members.
        key = worker.name if worker.of.members > 1 else id(worker.group)
        by_host.setdefault((key, worker.host), []).append(worker)
    for first, *others in by_host.values():  # the workers are called after the first: h100-0-0, ...
        gpus = ",".join(str(gpu) for worker in (first, *others) for gpu in worker.gpus)
        variables = first.environment | {"CUDA_VISIBLE_DEVICES": gpus}
        each = "" if first.of.members > 1 else " --cuda"
        yield _over_ssh(first, _command(first, variables, tls) + each)


def _command(worker: Worker, variables: Mapping[str, str], tls: bool) -> str:
    python = [sys.executable, "-m", "tasks.worker.process", *worker.arguments(tls)]
    return " ".join([*(f"{name}={value}" for name, value in variables.items()), shlex.join(python)])


def _elsewhere(cluster: Cluster) -> list[Worker]:
    """Return the workers that have hosts; ``digen up`` starts the others."""
    workers = workers_of(cluster)
    found = [worker for worker in workers if worker.host is not None]
    if not found:
        kind = workers[0].group.kind
        raise UserError(f"devices of kind {kind} have no hosts; set their hosts = [...]")
    return found


def _over_ssh(worker: Worker, command: str) -> str:
    """Return the line that starts a command in the background on a worker's host.

    It reads nothing: what a shell that is given the lines by a pipe has not read yet is its own.
    """
    log = shlex.quote(str(FOLDER / f"{worker.name}.log"))
    there = f"cd {shlex.quote(str(Path.cwd()))}; {USE_ENVIRONMENT}; "
    start = f"{there}nohup env {command} >{log} 2>&1 &"
    return f"ssh -n {shlex.quote(worker.host or '')} {shlex.quote(start)}"
