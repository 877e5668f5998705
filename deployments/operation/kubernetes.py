"""What Kubernetes is given: what the Dask operator takes, and jobs of gangs in teams.

The operator's groups have workers that are all alike and have no numbers. So a gang whose members
are on several hosts, or of several kinds, is an indexed job for each of its kinds: a pod for each
team, which knows its ranks by JOB_COMPLETION_INDEX.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from deployments.operation.access import CERTIFICATE, KEY
from deployments.operation.state import ENVIRONMENT
from deployments.operation.workers import Kind, Teams, in_teams, spares_in
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup, RewardGroup
from tasks.cluster import dashboard
from tasks.cluster.cluster import QUIET, as_environment
from tasks.cluster.listening import ENCRYPTED, INSECURE, PRELOADS_OF_SCHEDULERS, tls_settings

FILE: Final = "cluster.yaml"
TLS_FOLDER: Final = Path("/tls")  # in a container

_WORKER_NAME: Final = "$(DASK_WORKER_NAME)"  # which the operator gives
_PRELOADS: Final = [name for name in PRELOADS_OF_SCHEDULERS if name != dashboard.PRELOAD]
"""Of the scheduler: probes ask for its dashboard by other names than those that this lets in."""
_RESTARTS: Final = 1000
"""Of the pods of a gang, until its job counts as failed."""


def text(cluster: Cluster, tls: bool) -> str:
    """Return the file, with the commands that make its secrets.

    Args:
        cluster: as its file describes it.
        tls: whether the parts of Dask use it.
    """
    every = [*_of_operator(cluster, tls), *_of_gangs(cluster, tls)]
    return _notes(cluster, tls) + yaml.safe_dump_all(every, sort_keys=False)


def _of_operator(cluster: Cluster, tls: bool) -> list[dict[str, Any]]:
    """Return a DaskCluster with the first group of devices, and a DaskWorkerGroup for each other.

    They are what the operator of dask-kubernetes takes. Spares of a kind are a group.
    """
    own = cluster.kubernetes
    head: dict[str, Any] = {"apiVersion": "kubernetes.dask.org/v1"}
    groups = [
        {"replicas": group.num_devices, "spec": _worker_pod(cluster, group, tls)}
        for group in cluster.alone
        if not (isinstance(group, DeviceGroup) and group.gang_hosts > 1)
    ]
    for of, number in spares_in(cluster):
        command = _command(cluster, _WORKER_NAME, of, "", of.group, tls)
        groups.append({"replicas": number, "spec": _pod_of(cluster, of.group, 1, command, tls)})
    nobody = {"replicas": 0, "spec": _pod(cluster, {"name": "worker", "args": ["digen"]}, tls)}
    first, *others = groups or [nobody]
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


def _of_gangs(cluster: Cluster, tls: bool) -> list[dict[str, Any]]:
    """Return an indexed job for the teams of each kind of each gang."""
    own, jobs = cluster.kubernetes, []
    every = [teams for gang in in_teams(cluster) for teams in gang]
    for number, teams in enumerate(every):
        metadata = {"name": f"{own.name}-gang-{number}", "namespace": own.namespace}
        spec = {
            "completionMode": "Indexed",
            "completions": teams.num_hosts,
            "parallelism": teams.num_hosts,
            "backoffLimit": _RESTARTS,
            "template": {"spec": {"restartPolicy": "OnFailure", **_team_pod(cluster, teams, tls)}},
        }
        job: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job"}
        jobs.append(job | {"metadata": metadata, "spec": spec})
    return jobs


def _worker_pod(cluster: Cluster, group: DeviceGroup | RewardGroup, tls: bool) -> dict[str, Any]:
    command = _command(cluster, _WORKER_NAME, group, group.site, group, tls)
    return _pod_of(cluster, group, group.members, command, tls)


def _team_pod(cluster: Cluster, teams: Teams, tls: bool) -> dict[str, Any]:
    first = teams.first
    command = shlex.join(_command(cluster, first.device, first.of, first.site, first.group, tls))
    inside = f"exec {command} --ranks {teams.ranks('JOB_COMPLETION_INDEX')}"
    return _pod_of(cluster, first.group, teams.share, ["bash", "-c", inside], tls)


def _command(
    cluster: Cluster,
    name: str,
    of: Kind,
    site: str,
    group: DeviceGroup | RewardGroup,
    tls: bool,
) -> list[str]:
    """Return the command of a worker of a device, which computes with those of a group."""
    own, scheme = cluster.kubernetes, "tls" if tls else "tcp"
    address = f"{scheme}://{own.name}-scheduler.{own.namespace}.svc:8786"
    command = ["digen", "worker", address, "--name", name, *of.duty]
    if of.members > 1:
        command += ["--members", str(of.members)]
    if site:
        command += ["--site", site]
    return [*command, "--threads", str(group.threads), *([] if tls else [INSECURE])]


def _pod_of(
    cluster: Cluster,
    group: DeviceGroup | RewardGroup,
    share: int,
    command: list[str],
    tls: bool,
) -> dict[str, Any]:
    """Return a pod with some devices of a group, where the nodes have such."""
    own = cluster.kubernetes
    limits = {"cpu": str(group.threads * share), "memory": own.memory}
    gpu = {"nvidia.com/gpu": str(share)} if group.cuda else {}
    container = {
        "name": "worker",
        "args": command,
        "resources": {"limits": limits | gpu, "requests": limits},
        "envFrom": [{"secretRef": {"name": f"{own.name}-environment"}}],
    }
    zone = {"topology.kubernetes.io/zone": group.site} if group.site else {}
    labels = zone | own.node_labels.get(group.kind, {})
    where = {"nodeSelector": labels} if labels else {}
    # members of a gang beside each other, which NCCL has exchange what they compute with there
    shares_memory = group.cuda and share > 1
    return where | _pod(cluster, container, tls, shares_memory=shares_memory, claim=own.claim)


def _scheduler_pod(cluster: Cluster, tls: bool) -> dict[str, Any]:
    container = {
        "name": "scheduler",
        "args": [
            *("dask", "scheduler", "--host", "0.0.0.0", *["--protocol", "tls"] * tls),
            *(word for name in _PRELOADS for word in ("--preload", name)),
        ],
        "env": _env_of(QUIET),
        "ports": [
            {"name": "tcp-comm", "containerPort": 8786, "protocol": "TCP"},
            {"name": "http-dashboard", "containerPort": 8787, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"port": "http-dashboard", "path": "/health"}},
    }
    return _pod(cluster, container, tls)


def _pod(
    cluster: Cluster,
    container: dict[str, Any],
    tls: bool,
    *,
    shares_memory: bool = False,
    claim: str | None = None,
) -> dict[str, Any]:
    """Return a pod of a container.

    Args:
        cluster: with the image.
        container: what it is beside that.
        tls: whether it gets the cluster's keys.
        shares_memory: whether its processes share more memory than the 64 MB that each pod gives.
        claim: of the volume with this folder, which it has under the same path; None: it has none.
    """
    container = container | {"image": cluster.kubernetes.image}
    volumes: dict[str, tuple[Any, Any]] = {}  # by name how one is mounted, and what it is
    if tls:
        paths = tls_settings(TLS_FOLDER / CERTIFICATE.name, TLS_FOLDER / KEY.name)
        container["env"] = [*container.get("env", ()), *_env_of(ENCRYPTED | paths)]
        secret = {"secret": {"secretName": f"{cluster.kubernetes.name}-tls"}}
        volumes["tls"] = {"mountPath": str(TLS_FOLDER), "readOnly": True}, secret
    if shares_memory:
        volumes["shared-memory"] = {"mountPath": "/dev/shm"}, {"emptyDir": {"medium": "Memory"}}
    if claim is not None:
        here = str(Path.cwd())
        container["workingDir"] = here
        volumes["folder"] = {"mountPath": here}, {"persistentVolumeClaim": {"claimName": claim}}
    if not volumes:
        return {"containers": [container]}
    container["volumeMounts"] = [{"name": name, **own} for name, (own, _) in volumes.items()]
    named = [{"name": name, **own} for name, (_, own) in volumes.items()]
    return {"containers": [container], "volumes": named}


def _env_of(settings: Mapping[str, object]) -> list[dict[str, str]]:
    """Return Dask settings as variables of a container."""
    return [{"name": name, "value": value} for name, value in as_environment(settings).items()]


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


def _notes(cluster: Cluster, tls: bool) -> str:
    own = cluster.kubernetes
    create = f"# kubectl -n {own.namespace} create secret generic {own.name}"
    files = f"--from-file={CERTIFICATE} --from-file={KEY}"
    lines = ["# For the Dask operator. The secrets that the pods need:"]
    lines += [f"{create}-environment --from-env-file={ENVIRONMENT}"]
    lines += [f"{create}-tls {files}"] if tls else []
    return "\n".join([*lines, f"# kubectl apply -f {FILE}", ""])
