"""A small run that is interrupted and resumed, and what is to be left of it in the end."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from distributed import Client

from digen_core.checkpoints.manifest import Position
from digen_core.config.run import RunConfig
from support.runs import TOLERANCE, distance, initial, reference

ITERATIONS = 5
JOB = {
    "num_iterations": ITERATIONS,
    "evaluation.every": 2,
    "train.adam_eps": 1e-6,  # else Adam blows up the rounding of gradients that are almost 0
    "algorithm.clip_range": 0.01,
}


class StoppedError(Exception):
    pass


def stop_before_checkpoint(number: int, config: RunConfig) -> None:
    """Run a config until as many checkpoints are to be kept: an iteration ends with each."""
    from flows import post_train
    from flows.runtime import publishing
    from tasks.worker.checkpoint import keep_checkpoint

    checkpoints = count(1)

    def keep_fewer(
        client: Client,
        workers: Sequence[str],
        run_id: str,
        version: int,
        run_dir: Path,
        position: Position,
    ) -> object:
        if next(checkpoints) == number:
            raise StoppedError
        return keep_checkpoint(client, workers, run_id, version, run_dir, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "keep_checkpoint", keep_fewer)
        with pytest.raises(StoppedError):
            post_train.post_train(config)


def check_run(folder: Path, config: RunConfig) -> None:
    """Compare what a run left behind with the serial loop's."""
    from mlflow import MlflowClient

    from digen_core.checkpoints.manifest import read_lineage
    from digen_core.checkpoints.tensors import last_state
    from digen_core.transport.samples import read_samples

    expected, state = reference(config), last_state(folder)
    assert state.version == config.num_updates
    assert distance(expected.weights, initial(config)) > 1e-4, "the weights did not move"
    assert distance(state.weights, expected.weights) < TOLERANCE[config.model.dtype]
    assert distance(state.ema, expected.ema) < TOLERANCE[config.model.dtype]

    rows = read_samples(folder / "samples").to_pylist()
    names = [(row["iteration"], row["group"], row["sample"]) for row in rows]
    every = [range(config.num_iterations), range(2), range(4)]
    assert names == [(i, g, s) for i in every[0] for g in every[1] for s in every[2]]

    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    lineage = read_lineage(folder)
    assert lineage is not None
    run = client.get_run(lineage.mlflow_run_id)
    assert run.info.status == "FINISHED"
    for name in run.data.metrics:
        steps = Counter(metric.step for metric in client.get_metric_history(run.info.run_id, name))
        assert set(steps.values()) == {1}, f"{name} is there twice: {steps}"
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [metric.step for metric in history] == list(range(1, config.num_iterations + 1))
    for metric in history:
        serial = expected.metrics[metric.step - 1]["reward/mean"]
        assert metric.value == pytest.approx(serial, rel=1e-4)
    judged = client.get_metric_history(run.info.run_id, "evaluation/reward")
    updates = config.train.updates_per_iteration
    assert sorted(metric.step for metric in judged) == [updates * own for own in (0, 2, 4, 5)]
