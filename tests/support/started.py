"""What is started in tests: workers by their command, and programs that stand for others.

Such as a ``srun`` that starts all tasks of a step here.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from subprocess import Popen

from distributed import Client

SRUN = """\
#!/usr/bin/env bash
# Of a heterogeneous job --het-group says whose nodes are meant; each node has one task.
group=0
while [[ $1 == --* ]]; do
  [[ $1 == --het-group=* ]] && group=${1#--het-group=}
  shift
done
mapfile -t nodes < <(grep -o -- '--nodes=[0-9]*' "$SCRIPT")
for ((rank = 0; rank < ${nodes[group]#--nodes=}; rank++)); do
  SLURM_PROCID=$rank SLURM_NODEID=$rank "$@" &
done
wait
"""

ARGUMENTS = """\
#!/usr/bin/env bash
printf '%s\\n' "$OMP_NUM_THREADS $(printf '%s ' "$@")"
"""
"""Prints what it is called with, and the threads that it is given."""


def room_of(first: str, second: str, single: str = "single") -> list[list[str]]:
    """Return arguments of the workers of a gang of two, and of one that is in none.

    Args:
        first: address of the leader's host; another one of this machine's is as good as a host.
        second: of the follower's.
        single: name of the worker that is in no gang.
    """
    gang = ["--name", "room", "--members", "2", "--ranks"]
    return [
        ["--host", first, *gang, "0"],
        ["--host", second, *gang, "1"],
        ["--host", first, "--name", single],
    ]


@contextmanager
def started_workers(
    *asked: Sequence[str], folders: Sequence[Path | None] = ()
) -> Iterator[tuple[str, list[Popen[bytes]]]]:
    """Yield the address of a cluster, with TLS, and the processes of its workers: of their nannies.

    They have both roles, unless they are asked otherwise.

    Args:
        asked: arguments of each.
        folders: in which they are started; None, and further ones: in that of the test.
    """
    from digen_core.config.schedule import ClusterConfig
    from tasks.cluster.cluster import as_environment, run_cluster
    from tasks.cluster.listening import own_tls_settings

    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    variables |= as_environment(own_tls_settings(tls=True))
    both = ["--resources", "rollout=1 trainer=1"]
    processes = []
    with run_cluster(ClusterConfig(), []) as address, ExitStack() as ending:
        for arguments, folder in zip_longest(asked, folders):
            command = [sys.executable, "-m", "tasks.worker.process", address, *both, *arguments]
            started = Popen(command, env={**os.environ, **variables}, cwd=folder)
            process = ending.enter_context(started)
            ending.callback(process.terminate)
            processes.append(process)
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(len(asked), timeout=180)
        yield address, processes


def write_program(path: Path, text: str) -> Path:
    """Write a program that can be called."""
    path.write_text(text)
    path.chmod(0o755)
    return path
