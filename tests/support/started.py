"""Programs that stand for those of a cluster: a ``srun`` that starts all tasks of a step here."""

from pathlib import Path

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


def write_program(path: Path, text: str) -> Path:
    """Write a program that can be called."""
    path.write_text(text)
    path.chmod(0o755)
    return path
