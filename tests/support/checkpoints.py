"""A small train state and the position of a run that nobody ran."""

from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from digen_core.checkpoints.manifest import Lineage, Position
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt, prompts_hash
from digen_core.training.train_state import TrainState, version_hash
from digen_core.transport.arrays import Weights

PROMPTS = ["a red circle", "a blue square"]
EVALUATION_PROMPTS = ["a green square"]


def state_of(
    version: int, *, average: bool = True, old: bool = False, dtype: DTypeLike = np.float32
) -> TrainState:
    """Return a train state whose arrays are of several shapes and layouts."""
    random = np.random.default_rng(version)

    def weights() -> Weights:
        return {
            "transposed": random.normal(size=(3, 2)).astype(dtype).T,
            "strided": random.normal(size=8).astype(dtype)[::2],
            "a number": np.array(random.normal(), dtype=dtype),
        }

    found, lagging = weights(), weights() if old else None
    return TrainState(
        version=version,
        weights=found,
        weights_hash=version_hash(found, lagging),
        exp_avg=weights(),
        exp_avg_sq=weights(),
        ema=weights() if average else found,
        old=lagging,
        lengths={"transposed": 2, "strided": 4, "a number": 1},
    )


def position_of(num_iterations: int, config: RunConfig | None = None, **metrics: float) -> Position:
    """Return a position with some metrics."""
    return Position(
        num_iterations=num_iterations,
        metrics=metrics,
        reward_history={"a red circle": (0.25, 1 / 3)},
        lineage=Lineage(
            run_id="test-1",
            mlflow_run_id="0123",
            flow_run_ids=("first",),
            prompts_hash=prompts_hash([Prompt(text) for text in PROMPTS]),
            evaluation_prompts_hash=prompts_hash([Prompt(text) for text in EVALUATION_PROMPTS]),
        ),
        config=config or RunConfig(),
    )


def assert_same(found: TrainState, expected: TrainState) -> None:
    """Check that two states are equal to the last bit."""
    assert (found.version, found.weights_hash) == (expected.version, expected.weights_hash)
    assert found.lengths == expected.lengths
    for part in ("weights", "exp_avg", "exp_avg_sq", "ema", "old"):
        left, right = getattr(found, part), getattr(expected, part)
        if right is None:
            assert left is None
            continue
        assert left.keys() == right.keys()
        for name, value in right.items():
            assert (left[name].dtype, left[name].shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(left[name], value)


def names_in(folder: Path) -> list[str]:
    """Return the names of all that a folder holds, half-written or not."""
    return sorted(path.name for path in folder.iterdir())
