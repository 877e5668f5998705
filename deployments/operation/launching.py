"""Launch scripts for a cluster file's workers elsewhere: ssh, SLURM, Kubernetes, CUDA.

The scripts take addresses, keys and passwords from the file that ``digen up`` writes; they run in
this folder, with this Python, so hosts share both with this machine.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from deployments.operation.access import CERTIFICATE, KEY
from deployments.operation.state import ENVIRONMENT, FOLDER
from deployments.operation.workers import Worker, workers_of
from digen_core.errors import UserError
from digen_core.planning.cluster import Cluster
from digen_core.planning.groups import DeviceGroup, RewardGroup
from tasks.cluster.cluster import as_environment
from tasks.cluster.listening import ENCRYPTED, INSECURE, tls_settings
from tasks.worker.process import resources_of

Way = Literal["ssh", "cuda", "slurm", "kubernetes"]
USE_ENVIRONMENT = f"set -a; . {ENVIRONMENT}; set +a"
TLS_FOLDER = Path("/tls")  # in a container


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
            _require_gangs_of_one_host(cluster, way)
            return _slurm_scripts(cluster, tls)
        case "kubernetes":
            _require_gangs_of_one_host(cluster, way)
            resources = _kubernetes(cluster, tls)
            text = yaml.safe_dump_all(resources, sort_keys=False)
            return {"cluster.yaml": _kubernetes_notes(cluster, tls) + text}


def _require_gangs_of_one_host(cluster: Cluster, way: Way) -> None:
    """Check that what starts one worker after the other need not start parts of a gang."""
    for group in cluster.devices:
        if group.gang_hosts > 1:
            raise UserError(
                f"devices of kind {group.kind} have gangs on {group.gang_hosts} hosts each, which "
                f"{way} cannot start; use --for ssh, or digen worker --ranks on each host"
            )


def _script(lines: Iterator[str]) -> str:
    return "\n".join(["#!/usr/bin/env bash", "set -e", *lines]) + "\n"


def _ssh_lines(cluster: Cluster, tls: bool) -> Iterator[str]:
    """Yield a line for each worker, or for what a host has of a gang."""
    for worker in workers_of(cluster):
        yield _over_ssh(worker, _command(worker, worker.environment, tls))


def _cuda_lines(cluster: Cluster, tls: bool) -> Iterator[str]:
    """Yield a line for each group on each host: dask-cuda starts a worker for each of its GPUs."""
    by_host: dict[tuple[int | str, str | None], list[Worker]] = {}
    for worker in workers_of(cluster):
        if not worker.gpus:
            kind = worker.group.kind
            raise UserError(f"devices of kind {kind} are no GPUs; set their cuda = true")
        # A gang starts its own members.
        key = worker.name if worker.group.members > 1 else id(worker.group)
        by_host.setdefault((key, worker.host), []).append(worker)
    for first, *others in by_host.values():  # the workers are called after the first: h100-0-0, ...
        gpus = ",".join(str(gpu) for worker in (first, *others) for gpu in worker.gpus)
        variables = first.environment | {"CUDA_VISIBLE_DEVICES": gpus}
        each = "" if first.group.members > 1 else " --cuda"
        yield _over_ssh(first, _command(first, variables, tls) + each)


def _command(worker: Worker, variables: Mapping[str, str], tls: bool) -> str:
    python = [sys.executable, "-m", "tasks.worker.process", *worker.arguments(tls)]
    return " ".join([*(f"{name}={value}" for name, value in variables.items()), shlex.join(python)])


def _over_ssh(worker: Worker, command: str) -> str:
    """Return the line that starts a command in the background on a worker's host."""
    if worker.host is None:
        kind = worker.group.kind
        raise UserError(f"devices of kind {kind} have no hosts; set their hosts = [...]")
    log = shlex.quote(str(FOLDER / f"{worker.name}.log"))
    there = f"cd {shlex.quote(str(Path.cwd()))}; {USE_ENVIRONMENT}; "
    start = f"{there}nohup env {command} >{log} 2>&1 &"
    return f"ssh {shlex.quote(worker.host)} {shlex.quote(start)}"


def _slurm_scripts(cluster: Cluster, tls: bool) -> dict[str, str]:
    """Return a job array for each group of devices.

    Raises:
        UserError: dask-jobqueue is not installed.
    """
    try:
        from dask_jobqueue.slurm import SLURMJob
    except ImportError as error:
        raise UserError("job scripts need dask-jobqueue: pip install 'digen[slurm]'") from error
    first: dict[str, int] = {}
    scripts = {}
    for group in cluster.groups:
        start = first.get(group.kind, 0)
        first[group.kind] = start + group.num_devices
        job = SLURMJob(
            scheduler="$DASK_SCHEDULER_ADDRESS",
            name=f"{group.kind}-$SLURM_ARRAY_TASK_ID",
            job_name=f"digen-{group.kind}",
            queue=cluster.slurm.partition,
            account=cluster.slurm.account,
            walltime=cluster.slurm.walltime,
            memory=cluster.slurm.memory,
            cores=group.threads * group.members,
            processes=1,
            python=sys.executable,
            worker_command="tasks.worker.process",
            worker_extra_args=[
                "--nthreads 1 --memory-limit 0",  # the last of an option's values counts
                f"--resources {shlex.quote(resources_of(group.declared, group.site))}",
                *([f"--members {group.members}"] if group.members > 1 else []),
                *([] if tls else [INSECURE]),
            ],
            job_extra_directives=[
                f"--array={start}-{start + group.num_devices - 1}",
                f"--chdir={Path.cwd()}",
                f"--output={FOLDER}/{group.kind}-%a.log",
                *([f"--gres=gpu:{group.members}"] if group.cuda else []),
            ],
            job_script_prologue=[USE_ENVIRONMENT, f"export OMP_NUM_THREADS={group.threads}"],
        )
        scripts[f"{group.kind}-{start}.sbatch"] = job.job_script()
    return scripts


def _kubernetes(cluster: Cluster, tls: bool) -> list[dict[str, Any]]:
    """Return a DaskCluster with the first group of devices, and a DaskWorkerGroup for each other.

    They are what the operator of dask-kubernetes takes.
    """
    own = cluster.kubernetes
    head: dict[str, Any] = {"apiVersion": "kubernetes.dask.org/v1"}
    first, *others = [
        {"replicas": group.num_devices, "spec": _worker_pod(cluster, group, tls)}
        for group in cluster.groups
    ]
    scheduler = {"spec": _scheduler_pod(cluster, tls), "service": _scheduler_service(cluster)}
    resources = [
        head
        | {"kind": "DaskCluster", "metadata": {"name": own.name, "namespace": own.namespace}}
        | {"spec": {"worker": first, "scheduler": scheduler}}
    ]
    for number, group in enumerate(others, start=1):
        metadata = {"name": f"{own.name}-{number}", "namespace": own.namespace}
        spec = {"cluster": own.name, "worker": group}
        resources.append(head | {"kind": "DaskWorkerGroup", "metadata": metadata, "spec": spec})
    return resources


def _worker_pod(cluster: Cluster, group: DeviceGroup | RewardGroup, tls: bool) -> dict[str, Any]:
    own, scheme = cluster.kubernetes, "tls" if tls else "tcp"
    address = f"{scheme}://{own.name}-scheduler.{own.namespace}.svc:8786"
    command = ["digen", "worker", address, "--name", "$(DASK_WORKER_NAME)", group.duty]
    if group.members > 1:
        command += ["--members", str(group.members)]
    if group.site:
        command += ["--site", group.site]
    limits = {"cpu": str(group.threads * group.members), "memory": own.memory}
    gpu = {"nvidia.com/gpu": str(group.members)} if group.cuda else {}
    container = {
        "name": "worker",
        "args": [*command, "--threads", str(group.threads), *([] if tls else [INSECURE])],
        "resources": {"limits": limits | gpu, "requests": limits},
        "envFrom": [{"secretRef": {"name": f"{own.name}-environment"}}],
    }
    zone = {"nodeSelector": {"topology.kubernetes.io/zone": group.site}} if group.site else {}
    return zone | _pod(cluster, container, tls)


def _scheduler_pod(cluster: Cluster, tls: bool) -> dict[str, Any]:
    container = {
        "name": "scheduler",
        "args": ["dask", "scheduler", "--host", "0.0.0.0"] + ["--protocol", "tls"] * tls,
        "ports": [
            {"name": "tcp-comm", "containerPort": 8786, "protocol": "TCP"},
            {"name": "http-dashboard", "containerPort": 8787, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"port": "http-dashboard", "path": "/health"}},
    }
    return _pod(cluster, container, tls)


def _pod(cluster: Cluster, container: dict[str, Any], tls: bool) -> dict[str, Any]:
    container = container | {"image": cluster.kubernetes.image}
    if not tls:
        return {"containers": [container]}
    paths = tls_settings(TLS_FOLDER / CERTIFICATE.name, TLS_FOLDER / KEY.name)
    variables = as_environment(ENCRYPTED | paths)
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    mount = {"name": "tls", "mountPath": str(TLS_FOLDER), "readOnly": True}
    container["volumeMounts"] = [mount]
    volume = {"name": "tls", "secret": {"secretName": f"{cluster.kubernetes.name}-tls"}}
    return {"containers": [container], "volumes": [volume]}


def _scheduler_service(cluster: Cluster) -> dict[str, Any]:
    names = {"tcp-comm": 8786, "http-dashboard": 8787}
    labels = {"dask.org/cluster-name": cluster.kubernetes.name}
    return {
        "type": "ClusterIP",
        "selector": labels | {"dask.org/component": "scheduler"},
        "ports": [
            {"name": name, "protocol": "TCP", "port": port, "targetPort": name}
            for name, port in names.items()
        ],
    }


def _kubernetes_notes(cluster: Cluster, tls: bool) -> str:
    own = cluster.kubernetes
    create = f"# kubectl -n {own.namespace} create secret generic {own.name}"
    files = f"--from-file={CERTIFICATE} --from-file={KEY}"
    lines = ["# For the Dask operator. The secrets that the pods need:"]
    lines += [f"{create}-environment --from-env-file={ENVIRONMENT}"]
    lines += [f"{create}-tls {files}"] if tls else []
    return "\n".join([*lines, f"# kubectl apply -f {'cluster.yaml'}", ""])
