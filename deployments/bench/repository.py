"""Commands of ``digen bench`` that make, or check, what the repository keeps: pictures, a curve."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deployments.bench.commands import Several
from digen_core.errors import UserError

RUNS = Path("runs/pictures")


def pictures(*, only: Several[str] = None, output: Path = Path("docs/images")) -> int:
    """Make the pictures of the pages again, from real runs of the main job.

    Example: digen bench pictures --only timeline.png shapes-before-after.png

    A run of some minutes gives the first two; learning.png takes six such runs. Screenshots of
    Prefect's pages are left alone.

    Args:
        only: Some of timeline.png, shapes-before-after.png, learning.png; default: all.
        output: Folder that gets them; made if it is missing.
    """
    from deployments.bench import pictures as bench_pictures

    names = list(dict.fromkeys(only or bench_pictures.PICTURES))
    unknown = [name for name in names if name not in bench_pictures.PICTURES]
    if unknown:
        raise UserError(
            f"--only names {unknown[0]!r}; use some of {', '.join(bench_pictures.PICTURES)}"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output is {output}, and no such folder can be made: {error.strerror}"
        ) from error
    bench_pictures.main(names, output, RUNS)
    return 0


def golden(*, write: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Compare the rewards of a short run of the main job with those that the repository keeps.

    Example: digen bench golden

    It takes about a minute; the exit code is 1 if they differ.

    Args:
        write: Keep the new rewards instead, after a change that is meant to move them.
    """
    from deployments.bench import golden as bench_golden

    return bench_golden.main(write)
