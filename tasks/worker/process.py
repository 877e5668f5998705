"""A Dask worker for runs: what ``digen worker`` and all that starts workers elsewhere come down to.

    python -m tasks.worker.process SCHEDULER --name h100-0 --resources "rollout=1 trainer=1"

takes the options of ``dask worker``, or with --cuda those of ``dask cuda worker``, which starts a
worker for each visible GPU. With --members 8 it leads a gang of 8, whose others it starts, too, on
a GPU each: they are one device. A worker runs one task at a time, and its engine computes on
OMP_NUM_THREADS CPU threads, or on one. Without TLS it listens on this machine only, unless
--insecure says that nobody else is in the network.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Sequence

import dask

from digen_core.errors import UserError
from tasks.cluster.cluster import PRELOAD, settings_of_workers
from tasks.cluster.listening import INSECURE, asked_of_worker, options_of_worker
from tasks.cluster.presence import MEMBERS, SITE
from tasks.worker.followers import followers

# The model's memory is no matter for Dask, which would pause a worker that it finds too full.
DEFAULTS = ("--nthreads", "1", "--memory-limit", "0", "--no-dashboard")


def resources_of(declared: Collection[str], site: str = "") -> str:
    """Return what a worker of these roles, or of this pool, declares, for ``--resources``."""
    where = [SITE + site] if site else []
    return " ".join(f"{name}=1" for name in (*sorted(declared), *where))


def run_worker(
    arguments: Sequence[str], *, members: int = 1, cuda: bool = False, insecure: bool = False
) -> None:
    """Run a worker, or a gang of them, until it is stopped.

    Args:
        arguments: of ``dask worker``; of a gang its name and its resources, too.
        members: of the gang that it leads, whose others are started beside it.
        cuda: Start one for each visible GPU, by dask-cuda.
        insecure: Let it listen on a network without TLS.

    Raises:
        UserError: dask-cuda is not installed; there are too few GPUs for the gang; or the worker
            would listen on a network without TLS, and may not.
    """
    listening = options_of_worker(arguments, insecure=insecure)
    if members == 1:
        return _run(arguments, listening, cuda=cuda)
    if cuda:
        raise UserError(
            f"--cuda starts a device for each GPU; leave it out with --members {members}"
        )
    asked = asked_of_worker(arguments)
    own = [*arguments, "--resources", f"{asked['resources']} {MEMBERS}={members}"]
    same = [*arguments, *([INSECURE] if insecure else [])]
    with followers(same, asked["name"], members):
        _run(own, listening, cuda=False)


def _run(arguments: Sequence[str], listening: Sequence[str], *, cuda: bool) -> None:
    if cuda:
        try:
            from dask_cuda.cli import worker as command
        except ImportError as error:
            raise UserError("--cuda needs dask-cuda: pip install 'digen[cuda]'") from error
    else:
        from distributed.cli.dask_worker import main as command
    # By --preload, the process that only watches over the worker would import it, too.
    preload = {"distributed.worker.preload": [PRELOAD]}
    options = ["--preload", PRELOAD] if cuda else []  # with modules of its own, it takes no other
    num_threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    with dask.config.set(settings_of_workers(num_threads) | preload):
        command.main(
            [*DEFAULTS, *listening, *options, *arguments],
            prog_name="digen worker",
            standalone_mode=False,
        )


def main(words: Sequence[str]) -> int:
    """Run a worker as a command line says, and return the exit code."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument(INSECURE, action="store_true", dest="insecure")
    parser.add_argument("--members", type=int, default=1)
    own, arguments = parser.parse_known_args(words)
    try:
        run_worker(arguments, members=own.members, cuda=own.cuda, insecure=own.insecure)
    except UserError as error:
        sys.stderr.write(f"digen: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
