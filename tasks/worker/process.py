"""A Dask worker for runs: what ``digen worker`` and all that starts workers elsewhere come down to.

    python -m tasks.worker.process SCHEDULER --name h100-0 --resources "rollout=1 trainer=1"

takes the options of ``dask worker``, or with --cuda those of ``dask cuda worker``, which starts a
worker for each visible GPU. With --members 8 it starts a gang of 8, on a GPU each: they are one
device, whose leader has this name. With --ranks 0-3 it starts these, and other hosts the others. A
worker runs one task at a time, and its engine computes on OMP_NUM_THREADS CPU threads, or on one.
Without TLS it listens on this machine only, unless --insecure says that nobody else is in the
network.
"""

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from time import monotonic, sleep
from typing import Any, Final

import dask
from dask.utils import parse_timedelta

from digen_core.errors import UserError
from digen_core.preflight.network import parse_address, why_silent
from tasks.cluster import garbage
from tasks.cluster.cluster import PRELOAD, settings_of_workers
from tasks.cluster.listening import (
    INSECURE,
    asked_of_worker,
    options_of_worker,
    require_entry,
    scheduler_of,
)
from tasks.cluster.presence import SITE
from tasks.worker.followers import beside, gpus_of, member_arguments, ranks_of

WAIT_SECONDS: Final = 300
"""How long a worker starts, or waits for its scheduler, which may be gone."""

LOOK_SECONDS: Final = 1.0

# The model's memory is no matter for Dask, which would pause a worker that it finds too full.
DEFAULTS = (
    *("--nthreads", "1", "--memory-limit", "0", "--no-dashboard"),
    *("--death-timeout", str(WAIT_SECONDS)),
)


def resources_of(declared: Collection[str], site: str = "") -> str:
    """Return what a worker of these roles, or of this pool, declares, for ``--resources``."""
    where = [SITE + site] if site else []
    return " ".join(f"{name}=1" for name in (*sorted(declared), *where))


def run_worker(
    arguments: Sequence[str],
    *,
    members: int = 1,
    ranks: str = "",
    cuda: bool = False,
    insecure: bool = False,
) -> None:
    """Run a worker, or members of a gang, until it is stopped.

    Args:
        arguments: of ``dask worker``; of a gang its name and its resources, too.
        members: of the gang.
        ranks: which of them are started here, such as 0-3; empty: all.
        cuda: Start one for each visible GPU, by dask-cuda.
        insecure: Let it listen on a network without TLS.

    Raises:
        UserError: dask-cuda is not installed; there are no such members of the gang, or too few
            GPUs for them; the cluster has a worker of this name, is not there, or does not let it
            in; or the worker would listen on a network without TLS, and may not.
        Exception: it did not start.
    """
    options_of_worker(arguments, insecure=insecure)
    own = ranks_of(ranks, members)
    if cuda and members > 1:
        raise UserError(
            f"--cuda starts a device for each GPU; leave it out with --members {members}"
        )
    command = _command_of(cuda)
    if members > 1:
        gpus_of(os.environ, len(own))
    await_scheduler(arguments)
    listening = options_of_worker(arguments, insecure=insecure)  # its name may lead somewhere now
    if members == 1:
        return _run(command, arguments, [*listening, *(["--preload", PRELOAD] if cuda else [])])
    first, *others = (member_arguments(arguments, rank, members) for rank in own)
    with beside([[*other, *([INSECURE] if insecure else [])] for other in others]):
        _run(command, first, listening)


def await_scheduler(arguments: Sequence[str]) -> None:
    """Wait until a worker's scheduler listens and lets it in, and say that it is awaited.

    Dask's own process beside the worker would give up after half a minute.

    Args:
        arguments: of ``dask worker``.

    Raises:
        UserError: none listens in the time that the arguments give, it lets nobody in without its
            keys, or it is no address.
    """
    asked = asked_of_worker([*DEFAULTS, *arguments])
    address = scheduler_of(asked)
    found = parse_address("the scheduler's address", address)
    if (found["scheme"] or "tcp") not in ("tcp", "tls"):
        return
    seconds = float(parse_timedelta(asked["death_timeout"], "s"))
    began, is_told = monotonic(), False
    while why := why_silent(found["host"], int(found["port"])):
        if monotonic() - began > seconds:
            raise UserError(
                f"no scheduler answers at {address} ({why}), for {seconds:.0f} s; start it, or "
                "correct the address"
            )
        if not is_told:
            sys.stderr.write(f"waiting for the scheduler at {address}, {seconds:.0f} s at most\n")
            is_told = True
        sleep(LOOK_SECONDS)
    options = {"tls_ca_file": "ca_file", "tls_worker_cert": "cert", "tls_worker_key": "key"}
    files = {name: asked[f"tls_{option}"] for name, option in options.items()}
    require_entry(address, "worker", {name: file for name, file in files.items() if file})


def _command_of(cuda: bool) -> Any:
    """Return the command that is run."""
    if not cuda:
        from distributed.cli.dask_worker import main

        return main
    try:
        from dask_cuda.cli import worker
    except ImportError as error:
        raise UserError("--cuda needs dask-cuda: pip install 'digen[cuda]'") from error
    return worker


def _run(command: Any, arguments: Sequence[str], options: Sequence[str]) -> None:
    # By --preload, the process that only watches over the worker would import it, too; that of
    # dask-cuda, which has modules of its own, takes no other.
    preload = {"distributed.worker.preload": [garbage.PRELOAD, PRELOAD]}
    num_threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    with dask.config.set(settings_of_workers(num_threads) | preload):
        try:
            command.main(
                [*DEFAULTS, *options, *arguments],
                prog_name="digen worker",
                standalone_mode=False,
            )
        except RuntimeError as error:  # that it did not start
            raise _reason(error) from None


def _reason(error: BaseException) -> BaseException:
    """Return why a worker did not start, as its process said."""
    first = deepest = error.__cause__ or error
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    if taken := re.search(r"name taken, ([\w.-]+)", str(deepest)):
        return UserError(
            f"the cluster has a worker called {taken[1]} already; end that one, or use another "
            "--name, or of a gang other --ranks"
        )
    return first


def main(words: Sequence[str]) -> int:
    """Run a worker as a command line says, and return the exit code."""
    garbage.collect_rarely()
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument(INSECURE, action="store_true", dest="insecure")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--ranks", default="")
    own, arguments = parser.parse_known_args(words)
    try:
        run_worker(arguments, **vars(own))
    except UserError as error:
        sys.stderr.write(f"digen: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
