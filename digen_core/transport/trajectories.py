"""Latents of trained steps on disk, so that an iteration can be trained again without generating.

| RUN/trajectories/iteration-000003/g00-f1-t02.safetensors   a stretch of fragment 1 of group 0,
|                                                            from step 2 on
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from digen_core.control.protocol import Fragment
from digen_core.errors import UserError
from digen_core.inputs.reading import parse_json
from digen_core.transport.files import remove_folder, share, written_whole
from digen_core.transport.origin import Origin
from digen_core.transport.segment import Segment

TRAJECTORIES_OF_RUN: Final = "trajectories"


def folder_of(run_dir: Path, iteration: int) -> Path:
    """Return where the trajectories of an iteration are kept."""
    return run_dir / TRAJECTORIES_OF_RUN / f"iteration-{iteration:06d}"


def write_segment(run_dir: Path, segment: Segment, steps: Sequence[int]) -> Path | None:
    """Keep the part of a segment that holds some steps; the file appears whole or not at all.

    Args:
        run_dir: folder of the run.
        segment: of a trajectory.
        steps: to keep; from the first to the last of them that the segment covers.

    Returns:
        The file; None if the segment covers none of the steps.
    """
    covered = [step for step in steps if segment.covers(step)]
    if not covered:
        return None
    first, end = min(covered), max(covered) + 1
    start = first - segment.first_step
    tensors = {
        "latents": segment.latents[start : start + end - first + 1],
        "sigmas": segment.sigmas,
    }
    for step in covered:
        if step in segment.logprobs:
            tensors[f"logprobs/{step}"] = segment.logprobs[step]
    about = {"first_step": first, "version": segment.version, "device": segment.device}
    about["origin"] = None if segment.origin is None else segment.origin.to_kept()
    header = {**asdict(segment.fragment), **about}
    folder = folder_of(run_dir, segment.fragment.iteration)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"g{segment.fragment.group:02d}-f{segment.fragment.index}-t{first:02d}.safetensors"
    contiguous = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    with written_whole(folder / name, durable=False) as unfinished:
        save_file(contiguous, unfinished, metadata={"digen": json.dumps(header)})
        share(unfinished)
    return folder / name


def read_segments(run_dir: Path, iteration: int) -> list[Segment]:
    """Return what was kept of an iteration's trajectories; empty if nothing was.

    Raises:
        UserError: a file is damaged.
    """
    paths = sorted(folder_of(run_dir, iteration).glob("g*.safetensors"))
    return [_read(path) for path in paths]


def _read(path: Path) -> Segment:
    try:
        with safe_open(path, framework="numpy") as file:
            header = parse_json(file.metadata()["digen"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _segment_of(header, tensors)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _segment_of(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Segment:
    first, version, device = (header.pop(name) for name in ("first_step", "version", "device"))
    latents, sigmas = tensors.pop("latents"), tensors.pop("sigmas")
    logprobs = {int(name.removeprefix("logprobs/")): value for name, value in tensors.items()}
    origin = Origin.from_kept(header.pop("origin", None))
    header.setdefault("num_steps", len(sigmas) - 1)  # older files leave it out
    fragment = Fragment(**header)
    return Segment(fragment, first, latents, logprobs, version, sigmas, device, origin=origin)


def forget_trajectories(run_dir: Path, iteration: int) -> None:
    """Remove what is kept of an iteration."""
    shutil.rmtree(folder_of(run_dir, iteration), ignore_errors=True)


def prune_trajectories(run_dir: Path, newest: int, keep: int | Literal["all"]) -> None:
    """Remove the trajectories of all but the last ``keep`` iterations, ``newest`` the last one."""
    if keep == "all":
        return
    for folder in (run_dir / TRAJECTORIES_OF_RUN).glob("iteration-*"):
        if int(folder.name.removeprefix("iteration-")) <= newest - keep:
            remove_folder(folder)
