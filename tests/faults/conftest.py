"""A run whose writes are recorded: it is stopped, and resumed with other fragments."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from support.disk_recorder import Step, record_here, recording, steps_in
from support.resumed import JOB, StoppedError
from support.runs import merged, only_run, tree_of

KEPT = {"tracking.keep_images": "extremes", "tracking.keep_trajectories": 2}


@dataclass(frozen=True)
class Recorded:
    """What was recorded of a run."""

    config: RunConfig  # with which it was resumed
    run_dir: Path
    steps: list[Step]
    contents: Path  # of files
    whole: Path  # a copy of the folder as it was in the end


@pytest.fixture(scope="module")
def recorded(tiny_flux, prefect_backend, tmp_path_factory) -> Iterator[Recorded]:
    """The run; its cluster is there for as long as the tests."""
    from distributed import Client

    from flows.post_train import post_train
    from flows.runtime import publishing
    from tasks.cluster.cluster import local_devices, run_cluster

    folder, store = tmp_path_factory.mktemp("recorded"), tmp_path_factory.mktemp("store")
    (folder / "runs").mkdir()
    workers = ClusterConfig(rollout_workers=1, trainer_workers=1)
    keep, stopping = publishing.keep_checkpoint, [3]
    with (
        run_cluster(workers, local_devices(workers)) as address,
        Client(address, set_as_default=False) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        tree = merged(
            tree_of(tiny_flux, folder), {**JOB, **KEPT, "cluster.scheduler_address": address}
        )
        client.wait_for_workers(2, timeout=240)
        client.run(record_here, str(folder / "runs"), str(store))
        with recording(folder / "runs", store) as recorder:

            def kept(client, workers, run_id, version, run_dir, position):
                if version in stopping:
                    stopping.remove(version)
                    raise StoppedError
                is_kept = keep(client, workers, run_id, version, run_dir, position)
                recorder.promise(version)
                return is_kept

            patch.setattr(publishing, "keep_checkpoint", kept)
            with pytest.raises(StoppedError):
                post_train(RunConfig.model_validate(tree))
            config = RunConfig.model_validate(merged(tree, {"rollout.fragment_size": 2}))
            post_train(config, str(only_run(tree)))
        patch.undo()
        run_dir = only_run(tree)
        whole = shutil.copytree(run_dir, folder / "whole")
        yield Recorded(config, run_dir, steps_in(store), store / "contents", whole)
