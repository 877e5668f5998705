"""Job scripts for SLURM: an array for each group of devices, and one job for each gang in teams.

Headers and commands are dask-jobqueue's. A gang whose members are on several hosts, or of several
kinds, is one job, whose nodes SLURM gives all at once: ``srun`` starts a team on each, which knows
its ranks by SLURM_PROCID. Teams of several kinds are the components of a heterogeneous job. As the
whole job ends with any of its teams, no spares are started.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from deployments.operation.state import FOLDER, USE_ENVIRONMENT
from deployments.operation.workers import Kind, Teams, in_teams
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup, RewardGroup
from tasks.cluster.listening import INSECURE
from tasks.worker.process import WAIT_SECONDS, resources_of

_TASKS = "-n 1"  # dask-jobqueue's: a job of one task


def scripts(cluster: Cluster, tls: bool) -> dict[str, str]:
    """Return the job scripts of a cluster's workers, by name.

    Args:
        cluster: as its file describes it.
        tls: whether the parts of Dask use it.

    Raises:
        UserError: dask-jobqueue is not installed, or it is not known which nodes have what a gang
            has.
    """
    return _arrays(cluster, tls) | _jobs(cluster, tls)


def _arrays(cluster: Cluster, tls: bool) -> dict[str, str]:
    """Return a job array for each group of devices that are each on one host."""
    first: dict[str, int] = {}
    found = {}
    for group in cluster.alone:
        if isinstance(group, DeviceGroup) and group.gang_hosts > 1:
            continue
        start = first.get(group.kind, 0)
        first[group.kind] = start + group.num_devices
        found[f"{group.kind}-{start}.sbatch"] = _job_script(
            cluster,
            group,
            group.members,
            name=f"{group.kind}-$SLURM_ARRAY_TASK_ID",
            arguments=_arguments(group, group.site, tls),
            directives=[
                f"--array={start}-{start + group.num_devices - 1}",
                f"--output={FOLDER}/{group.kind}-%a.log",
            ],
        )
    return found


def _jobs(cluster: Cluster, tls: bool) -> dict[str, str]:
    """Return a job for each gang that is on several hosts, or of several kinds."""
    return {
        f"{gang[0].first.device}.sbatch": _job_of_gang(cluster, gang, tls)
        for gang in in_teams(cluster)
    }


def _job_of_gang(cluster: Cluster, gang: list[Teams], tls: bool) -> str:
    """Return the job of a gang: as many nodes as it has teams, of each kind."""
    device = gang[0].first.device
    _check_constraints(cluster, gang)
    headers, steps = [], []
    for number, teams in enumerate(gang):
        first = teams.first
        script = _job_script(
            cluster,
            first.group,
            teams.share,
            name=device,
            arguments=[*_arguments(first.of, first.site, tls), f"--ranks {teams.ranks('rank')}"],
            directives=[
                f"--nodes={teams.num_hosts} --ntasks-per-node=1",
                f"--output={FOLDER}/{device}.log",
            ],
            skipped=(_TASKS,),
        )
        *before, command = script.rstrip().splitlines()
        headers.append([line for line in before if line.startswith("#SBATCH")])
        inside = f"rank=$SLURM_PROCID; exec {command}"
        options = ["--kill-on-bad-exit=1", "--label"]
        options.append(f"--cpus-per-task={first.group.threads * teams.share}")
        options += [f"--het-group={number}"] if len(gang) > 1 else []
        threads = f"OMP_NUM_THREADS={first.group.threads}"
        steps.append(f"{threads} srun {' '.join(options)} bash -c {shlex.quote(inside)} &")
    header = "\n#SBATCH hetjob\n".join("\n".join(lines) for lines in headers)
    # When one of the steps has ended, so does the job: half a gang is of no use.
    return "\n".join(["#!/usr/bin/env bash", header, "", USE_ENVIRONMENT, *steps, "wait -n", ""])


def _check_constraints(cluster: Cluster, gang: list[Teams]) -> None:
    """Check that SLURM can tell the nodes of a gang of several kinds from each other."""
    kinds = dict.fromkeys(teams.first.group.kind for teams in gang)
    unknown = [kind for kind in kinds if kind not in cluster.slurm.constraints]
    if len(kinds) > 1 and unknown:
        raise UserError(
            f"gangs of kind {gang[0].first.of.kind} have members of kind {' and '.join(kinds)}, "
            f"but the file does not say which nodes have {unknown[0]}; set [slurm.constraints] "
            f'{unknown[0]} = "a feature of these nodes"'
        )


def _arguments(of: Kind, site: str, tls: bool) -> list[str]:
    """Return what a worker is told beside its name."""
    return [
        "--nthreads 1 --memory-limit 0",  # the last of an option's values counts
        f"--resources {shlex.quote(resources_of(of.declared, site))}",
        *([f"--members {of.members}"] if of.members > 1 else []),
        *([] if tls else [INSECURE]),
    ]


def _job_script(
    cluster: Cluster,
    group: DeviceGroup | RewardGroup,
    share: int,
    *,
    name: str,
    arguments: list[str],
    directives: list[str],
    skipped: Sequence[str] = (),
) -> str:
    """Return a job script, as dask-jobqueue writes it.

    Args:
        cluster: of the file.
        group: of the devices.
        share: how many of them a node has.
        name: of the worker.
        arguments: of it, beside.
        directives: beside those that all jobs have.
        skipped: header lines with these are left out.

    Raises:
        UserError: dask-jobqueue is not installed.
    """
    try:
        from dask_jobqueue.slurm import SLURMJob
    except ImportError as error:
        raise UserError("job scripts need dask-jobqueue: pip install 'digen[slurm]'") from error
    own = cluster.slurm
    feature = own.constraints.get(group.kind)
    job = SLURMJob(
        scheduler="$DASK_SCHEDULER_ADDRESS",
        name=name,
        job_name=f"digen-{group.kind}",
        queue=own.partition,
        account=own.account,
        walltime=own.walltime,
        memory=own.memory,
        cores=group.threads * share,
        processes=1,
        death_timeout=WAIT_SECONDS,
        python=shlex.quote(sys.executable),
        worker_command="tasks.worker.process",
        worker_extra_args=arguments,
        job_directives_skip=skipped,
        job_extra_directives=[
            *directives,
            f"--chdir={_in_directive(str(Path.cwd()))}",
            *([f"--gres=gpu:{share}"] if group.cuda else []),
            *([f"--constraint={feature}"] if feature else []),
        ],
        job_script_prologue=[USE_ENVIRONMENT, f"export OMP_NUM_THREADS={group.threads}"],
    )
    return str(job.job_script())


def _in_directive(path: str) -> str:
    """Return a path as a line of SLURM's header holds it: in quotes, else a space ends it."""
    escaped = re.sub(r'(["\\])', r"\\\1", path)
    return f'"{escaped}"'
