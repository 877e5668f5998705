"""End a run from another terminal: as Ctrl-C in its own would, or by Prefect from elsewhere."""

import os
import signal
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from deployments.errors import RunFailedError
from digen_core.checkpoints.manifest import read_lineage
from digen_core.checkpoints.run_state import Holder, RunState, holder_of, state_of
from digen_core.errors import UserError

END_SECONDS: Final = 60.0
"""How long a run may take to end: its own limit is shorter (deployments/stopping.py)."""
POLL_SECONDS: Final = 0.2


def cancel_run(run_dir: Path) -> RunState:
    """Have a run end in order, and return where it stands when its process has let go of it.

    Raises:
        UserError: nobody trains it, or it is trained elsewhere and Prefect does not know it.
        RunFailedError: its process does not end.
    """
    holder = holder_of(run_dir)
    if holder is None:
        raise UserError(f"{run_dir} is not being trained; 'digen ls' lists what is")
    if not (holder.is_here and _interrupted(holder)):
        _cancel_in_prefect(run_dir, holder)
    deadline = monotonic() + END_SECONDS
    while (now := holder_of(run_dir)) is not None and now == holder:
        if monotonic() > deadline:
            raise RunFailedError(
                f"process {holder.pid} on {holder.host} still has {run_dir} after "
                f"{END_SECONDS:.0f} s; look at its terminal"
            )
        sleep(POLL_SECONDS)
    return state_of(run_dir)


def _interrupted(holder: Holder) -> bool:
    """Send what Ctrl-C sends; say whether this process may."""
    try:
        os.kill(holder.pid, signal.SIGINT)
    except ProcessLookupError:  # it has just ended
        return True
    except PermissionError:
        return False
    return True


def _cancel_in_prefect(run_dir: Path, holder: Holder) -> None:
    from prefect.states import Cancelling

    from deployments.operation.prefect_server import set_state

    lineage = read_lineage(run_dir)
    if lineage is None or not lineage.flow_run_ids:
        raise UserError(
            f"{run_dir} is trained by process {holder.pid} on {holder.host}, and has not begun in "
            "Prefect; call 'digen cancel' there"
        )
    runs_dir = run_dir.resolve().parent
    set_state(runs_dir, lineage.flow_run_ids[-1], Cancelling(), "running")
