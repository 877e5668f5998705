"""Every family through Prefect and Dask: FlowGRPO and DanceGRPO, images and videos.

And DiffusionNFT on one whose forward pass is digen's own.

Fragments, full packs and groups have one size: a replay is computed in the batch of the rollout,
and its log-ratios are exactly 0. ``disaggregated`` ends an iteration with smaller packs, which may
round otherwise.
"""

import math

import pytest

from digen_core.config.families import VIDEO_FAMILIES
from support.families import HEIGHT, MODELS, NEGATIVE, TOKENS, WIDTH, family_of, tolerance_of
from support.layout_runs import Case, check_weights, marked

pytestmark = pytest.mark.ci

ALGORITHMS = {
    "flow_grpo": {"algorithm": {"trained_fraction": 0.75, "kl_coefficient": 0.1}},
    "dance_grpo": {
        "rollout.transition": "dance",
        "rollout.noise_level": 0.3,
        "rollout.initial_noise": "group",
        "model.shift": 3.0,
        "algorithm": {"type": "dance_grpo", "trained_fraction": 0.7},
    },
    "diffusion_nft": {"algorithm": {"type": "diffusion_nft", "kl_coefficient": 0.01}},
}
LAYOUTS = {  # with one trainer: several share what is left, in packs of other sizes
    "flow_grpo": Case("tsp", (2, 1), 4, 4),
    "dance_grpo": Case("disaggregated", (2, 1), 4, 4),
    "diffusion_nft": Case("tsp", (2, 1), 4, 4),
}
RUNS = [
    (model, frames, algorithm)
    for model in MODELS
    for frames in ((1, 5) if family_of(model) in VIDEO_FAMILIES else (1,))
    for algorithm in ALGORITHMS
    if algorithm != "diffusion_nft" or model == "qwen_image21"
]
OFTEN = (RUNS.index(("wan", 5, "flow_grpo")),)


@pytest.mark.parametrize(("family", "frames", "algorithm"), marked(RUNS, OFTEN, "families"))
def test_weights_of_a_family_equal_the_serial_reference(
    family, frames, algorithm, tiny_families, run_layout
):
    rewards = {"smooth_rewards:brightness": {"weight": 1.0}}
    if frames > 1:
        rewards = {"smooth_rewards:video_brightness": {"takes": "videos"}}
    found = run_layout(
        LAYOUTS[algorithm],
        **{
            "model.family": family_of(family),
            "model.path": tiny_families[family],
            "model.height": HEIGHT,
            "model.width": WIDTH,
            "model.num_frames": frames,
            "model.max_sequence_length": TOKENS,
            "model.guidance_scale": 3.0,
            "model.negative_prompt": NEGATIVE,
            "rewards": rewards,
            "rollout.prompts_per_iteration": 2,
            **ALGORITHMS[algorithm],
        },
    )
    check_weights(found, tolerance_of(family))
    assert len(found.records) == 3
    for record in found.records:
        rounding = tolerance_of(family) if algorithm == "dance_grpo" else 0
        assert record.metrics["train/max_log_ratio"] <= rounding
        assert all(math.isfinite(value) for value in record.metrics.values())
        assert record.metrics["groups/zero_variance"] == 0
