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
from typing import Final

import dask

from digen_core.errors import UserError
from tasks.cluster import garbage
from tasks.cluster.cluster import PRELOAD, settings_of_workers
from tasks.cluster.listening import INSECURE, options_of_worker
from tasks.cluster.presence import SITE
from tasks.worker.followers import beside, member_arguments, ranks_of

WAIT_SECONDS: Final = 300
"""How long a worker starts, or waits for its scheduler, which may be gone."""

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
            GPUs for them; the cluster has a worker of this name; or the worker would listen on a
            network without TLS, and may not.
        Exception: it did not start.
    """
    listening = options_of_worker(arguments, insecure=insecure)
    own = ranks_of(ranks, members)
    if members == 1:
        return _run(arguments, listening, cuda=cuda)
    if cuda:
        raise UserError(
            f"--cuda starts a device for each GPU; leave it out with --members {members}"
        )
    first, *others = (member_arguments(arguments, rank, members) for rank in own)
    with beside([[*other, *([INSECURE] if insecure else [])] for other in others]):
        _run(first, listening, cuda=False)


def _run(arguments: Sequence[str], listening: Sequence[str], *, cuda: bool) -> None:
    if cuda:
        try:
            from dask_cuda.cli import worker as command
        except ImportError as error:
            raise UserError("--cuda needs dask-cuda: pip install 'digen[cuda]'") from error
    else:
        from distributed.cli.dask_worker import main as command
    # By --preload, the process that only watches over the worker would import it, too.
    preload = {"distributed.worker.preload": [garbage.PRELOAD, PRELOAD]}
    options = ["--preload", PRELOAD] if cuda else []  # with modules of its own, it takes no other
    num_threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    with dask.config.set(settings_of_workers(num_threads) | preload):
        try:
            command.main(
                [*DEFAULTS, *listening, *options, *arguments],
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
