"""Have a worker leave its cluster, and forget it where ``digen up`` started it."""

from collections.abc import Callable

from distributed import Client

from deployments.operation.services import DASK
from deployments.operation.state import load_state, locked
from digen_core.preflight.network import check_scheduler
from tasks.cluster.leaving import leave
from tasks.cluster.listening import require_entry


def leave_cluster(address: str, name: str, say: Callable[[str], None]) -> None:
    """Have a worker leave, and wait until it is gone.

    Args:
        address: of the Dask scheduler.
        name: of the worker.
        say: hears that it may take a while.

    Raises:
        UserError: there is no such worker, it is the last of its pool, or no scheduler is there, or
            it does not let this process in.
        SchedulerLostError: the scheduler does not answer.
    """
    check_scheduler("the scheduler's address", address)
    require_entry(address, "client")
    with Client(address, set_as_default=False) as client:
        say(f"{name} leaves when its run needs nothing of it any more; Ctrl-C ends the waiting")
        leave(client, name)
    state = load_state()
    if state is None or state.addresses[DASK] != address:
        return
    with locked():
        if state := load_state():
            state.without(name).save()
