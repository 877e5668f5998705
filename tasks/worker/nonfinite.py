"""Keep what led to NaN or Inf, and end the run where the config says so."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Literal

from digen_core.control.protocol import Fragment
from digen_core.transport.arrays import Arrays
from digen_core.transport.kept_inputs import InputKind, KeptInput, keep_input


def input_of(
    kind: InputKind,
    fragment: Fragment,
    found: str,
    about: Mapping[str, object],
    arrays: Arrays,
    version: int = -1,
) -> KeptInput:
    """Return what is kept of work on a fragment.

    Args:
        kind: of the work.
        fragment: whose samples it was about.
        found: what is NaN or infinite.
        about: plain values that it takes to do it again.
        arrays: likewise.
        version: of the policy; -1: none takes part.
    """
    return KeptInput(
        name=f"g{fragment.group:02d}-f{fragment.index}-{kind}",
        kind=kind,
        found=found,
        iteration=fragment.iteration,
        group=fragment.group,
        version=version,
        about={**about, "fragment": asdict(fragment)},
        arrays=arrays,
    )


def keep_or_fail(run_dir: Path, kept: KeptInput, policy: Literal["fail", "drop", "skip"]) -> None:
    """Keep an input.

    Raises:
        FloatingPointError: what came of it ends the run.
    """
    keep_input(run_dir, kept)
    if policy == "fail":
        raise FloatingPointError(
            f"{kept.found}; its input is kept: digen replay {quote(str(run_dir))} "
            f"{kept.iteration + 1} --nonfinite"
        )
