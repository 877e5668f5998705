"""What has to hold of the folder of a run that a power cut left, and that is to be resumed."""

import json
from itertools import product
from pathlib import Path

from PIL import Image
from safetensors.numpy import load_file

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.checkpoints.resume import Resumption, newest_run
from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.run_state import state_of
from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.config.run import RunConfig
from digen_core.trace.spans import DEVICES_OF_RUN, SPANS_OF_RUN, read_devices, read_spans
from digen_core.transport.metrics import METRICS_OF_RUN, read_metrics
from digen_core.transport.samples import read_samples
from digen_core.transport.trajectories import read_segments
from tasks.tracking.spool import Spool
from tasks.tracking.versions import VERSIONS_OF_RUN


def check_resume(runs_dir: Path, config: RunConfig, promised: int | None, run_dir: Path) -> int:
    """Resume what is left in a folder of runs, without workers; return the version that is taken.

    Args:
        runs_dir: what a cut left.
        config: to resume with.
        promised: the newest version that the run was told is on disk; None if there was none.
        run_dir: folder of the same run, not cut: of what is exported in the end.
    """
    from flows.reopen import discard, resuming

    left = newest_run(
        config.model_copy(
            update={"tracking": config.tracking.model_copy(update={"runs_dir": str(runs_dir)})}
        )
    )
    if left is None:
        assert promised is None, f"version {promised} was promised, and no run is there"
        return 0
    state_of(left)
    with resuming(config, left) as resumption:
        assert not resumption.damaged
        version = resumption.manifest.version if resumption.manifest else 0
        assert version >= (promised or 0), f"version {promised} was promised"
        for checkpoint in checkpoints_in(left / CHECKPOINTS_OF_RUN):
            assert read_checkpoint(checkpoint).version <= version
        newest = max(_with_trajectories(left), default=-1)
        discard(left, resumption)
    _check_iterations(left, config, resumption)
    _check_kept(left, resumption.num_iterations, newest)
    _check_told(left, resumption)
    _check_versions(left, version, resumption)
    _check_exports(left, run_dir)
    return version


def _check_iterations(left: Path, config: RunConfig, resumption: Resumption) -> None:
    """All that the checkpoint vouches for is there once, and nothing else."""
    done = range(resumption.num_iterations)
    if done:
        rows = read_samples(left / "samples").to_pylist()
        found = [(row["iteration"], row["group"], row["sample"]) for row in rows]
        groups = range(config.rollout.prompts_per_iteration)
        assert found == list(product(done, groups, range(config.rollout.group_size)))
        assert {span.iteration for span in read_spans(left / SPANS_OF_RUN)} == set(done)
        assert len(read_devices(left / DEVICES_OF_RUN)) == 2
    else:
        assert not list(left.glob("samples/iteration*"))
        assert not list(left.glob("spans/iteration*"))
    records = read_metrics(left / METRICS_OF_RUN)
    assert [record.iteration for record in records] == list(done)
    version = resumption.manifest.version if resumption.manifest else 0
    assert all(report.version <= version for report in evaluations_of(left).values())


def _with_trajectories(left: Path) -> list[int]:
    return [int(path.name[-6:]) for path in sorted(left.glob("trajectories/iteration-*"))]


def _check_kept(left: Path, num_iterations: int, newest: int) -> None:
    """Images and trajectories are those of the rows, each of them once and whole.

    Trajectories are of the last two iterations. Where later ones than the checkpoint's were
    published, old ones are gone for them: both, if there were some of the next but one, ``newest``.
    """
    images = {path.relative_to(left).as_posix() for path in left.glob("images/*/[!.]*")}
    rows = read_samples(left / "samples").to_pylist() if num_iterations else []
    assert images == {row["image"] for row in rows if row["image"]}
    for path in images:
        with Image.open(left / path) as image:
            image.load()
    samples = {(row["iteration"], row["group"], row["sample"]) for row in rows}
    kept = _with_trajectories(left)
    fewest = 0 if newest > num_iterations else 1
    assert kept in [
        list(range(max(0, num_iterations - n), num_iterations)) for n in range(fewest, 3)
    ]
    for iteration in kept:
        found = [
            (iteration, segment.fragment.group, sample, step)
            for segment in read_segments(left, iteration)
            for sample in segment.fragment.samples
            for step in range(segment.first_step, segment.first_step + len(segment.latents) - 1)
        ]
        assert len(found) == len(set(found)), "a trajectory is there twice"
        assert {one[:3] for one in found} == {one for one in samples if one[0] == iteration}


def _check_told(left: Path, resumption: Resumption) -> None:
    """MLflow is told nothing twice, and of no iteration that is done again."""
    spool = Spool.open(left)
    if spool is None:
        assert resumption.lineage is None
        return
    keys = [entry["key"] for entry in spool.read()]
    assert len(keys) == len(set(keys))
    iterations = [int(key.split()[1]) for key in keys if key.startswith("iteration ")]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(iterations) <= resumption.num_iterations
    for entry, _ in spool.unsent():
        if entry["kind"] in ("file", "model"):
            assert (left / entry["path"]).exists(), f"{entry['path']} is to be sent"


def _check_versions(left: Path, version: int, resumption: Resumption) -> None:
    """Each version has a line, but for the newest, whose line comes after its checkpoint.

    Half a line at the end goes when the next one is added.
    """
    path = left / VERSIONS_OF_RUN
    *whole, _ = path.read_text().split("\n") if path.exists() else [""]
    lines = [json.loads(line) for line in whole]
    assert [line["version"] for line in lines] in (list(range(version)), list(range(version + 1)))
    for before, line in zip([None, *lines], lines, strict=False):
        assert line["parent"] == (before["hash"] if before else None)
    if resumption.manifest and len(lines) > version:
        assert lines[-1]["hash"] == resumption.manifest.weights_hash


def _check_exports(left: Path, run_dir: Path) -> None:
    """What is exported is there whole, or not at all."""
    for name in ("lora", "model"):
        if not (left / name).exists():
            continue
        for path in (run_dir / name).rglob("*"):
            own = left / path.relative_to(run_dir)
            assert own.exists(), f"{own} is missing"
            if own.is_file():
                assert own.read_bytes() == path.read_bytes()
            if own.suffix == ".safetensors":
                load_file(own)
