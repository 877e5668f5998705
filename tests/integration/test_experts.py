"""Models of two experts through Prefect and Dask: trajectories and packs cross the boundary."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from digen_core.checkpoints.tensors import last_state
from digen_core.rollout.steps import steps_of_iteration
from support.families import NEGATIVE, OF_KIND, TOKENS
from support.layout_runs import Case, Run, check_weights
from support.runs import initial

pytestmark = pytest.mark.slow

NUM_HIGH = 2  # of 4 steps, at the noise levels 1, 0.9, 0.75 and 0.5


@dataclass(frozen=True)
class ExpertsCase(Case):
    """A layout, and what else is changed."""

    settings: dict = field(default_factory=dict)

    @property
    def changes(self) -> dict:
        return super().changes | self.settings


FLOW = {"algorithm": {"trained_fraction": 0.75, "kl_coefficient": 0.1}}
DANCE = {
    "rollout.transition": "dance",
    "rollout.noise_level": 0.3,
    "rollout.initial_noise": "group",
    "algorithm": {"type": "dance_grpo", "trained_fraction": 0.75},
}
NFT = {"algorithm": {"type": "diffusion_nft"}}
ALL = {"train.lora": None}
LOW, HIGH = {"model.train_experts": "low"}, {"model.train_experts": "high"}
CASES = [
    ExpertsCase("elastic", (2, 1), 4, 4, helping=True, settings=FLOW),
    ExpertsCase("tcss", (2, 2), 2, 3, helping=True, share=1.0, settings=FLOW),
    ExpertsCase("elastic", (2, 2), 2, 3, helping=True, settings=DANCE),
    ExpertsCase("tcss", (2, 1), 2, 8, pauses=True, share=1.0, settings=DANCE),
    ExpertsCase("elastic", (2, 1), 4, 4, helping=True, settings=NFT),
    ExpertsCase("tcss", (2, 1), 2, 3, pauses=True, share=1.0, settings=NFT),
    ExpertsCase("tsp", (2, 1), 4, 8, dtype="float32", settings=FLOW | ALL | LOW),
    ExpertsCase("elastic", (2, 1), 2, 8, settings=FLOW | HIGH),
    ExpertsCase("tsp", (2, 1), 4, 8, settings={"algorithm": {"trained_fraction": 0.5}}),
]


@pytest.mark.families
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_of_both_experts_equal_the_serial_reference(case, tiny_families, run_layout):
    run = run_layout(
        case,
        **{
            "model.family": "wan",
            "model.path": tiny_families["wan-a14b"],
            "model.num_frames": 5,
            "model.max_sequence_length": TOKENS,
            "model.guidance_scale": 3.0,
            "model.negative_prompt": NEGATIVE,
            **{f"model.{name}": value for name, value in OF_KIND["wan-a14b"].items()},
            "rewards": {"smooth_rewards:video_brightness": {"takes": "videos"}},
        },
    )
    # Parts of Wan are float32, which round otherwise with another number of samples: of one
    # expert, DanceGRPO's weights differ as much.
    check_weights(run, 1e-6 if case.fragment == case.pack else 1e-4)
    assert len(run.records) == 3
    _check_experts(run)


def _check_experts(run: Run) -> None:
    """Check that pairs of both were trained, unless the case has none, and which have moved."""
    levels = [steps_of_iteration(run.config, index).trained for index in range(3)]
    sides = {level < NUM_HIGH for trained in levels for level in trained}
    assert sides == ({True} if run.config.algorithm.trained_fraction == 0.5 else {True, False})
    before, after = initial(run.config), last_state(Path(run.folder)).weights
    moved = {
        name.partition(".")[0]
        for name, value in after.items()
        if not np.array_equal(value, before[name])
    }
    wanted = {"high": {"transformer"}, "low": {"transformer_2"}}
    # without a pair an expert is stepped, too: with a gradient of 0, by its weight decay
    both = {"transformer", "transformer_2"}
    assert moved == wanted.get(run.config.model.train_experts, both)
