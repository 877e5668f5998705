"""The contract: the weights of a distributed run equal those of the serial reference."""

import pytest

from digen_core.config.run import RunConfig
from support.layout_runs import train_only
from support.runs import TOLERANCE, Watch, distance, initial, merged, reference, with_own_steps

pytestmark = pytest.mark.slow

OWN_STEPS_CASE = "prompts with their own steps"
CASES = {
    "float64": {},
    "float32": {"model.dtype": "float32"},
    "fragments and packs that cut groups and steps": {
        "rollout.fragment_size": 2,
        "rollout.steps_per_task": 2,
        "train.pack_size": 3,
    },
    "automatic steps per task, one pair a pack": {
        "rollout.steps_per_task": "auto",
        "train.pack_size": 1,
    },
    "all weights, true KL": {
        "train.lora": None,
        "train.learning_rate": 1e-4,
        "algorithm.kl_coefficient": 0.1,
        "algorithm.kl": "gaussian",
    },
    "adapters, scaled KL, a window": {
        "algorithm.kl_coefficient": 0.1,
        "algorithm.window": [1, 0, 3],
    },
    "cps, scaled over the batch": {
        "rollout.transition": "cps",
        "algorithm.advantage_scale": "batch",
    },
    "dance, unbiased deviation, no average": {
        "rollout.transition": "dance",
        "rollout.noise_level": 0.3,
        "train.learning_rate_decay": "cosine",
        "algorithm.advantage_ddof": 1,
        "train.ema_decay": 0,
    },
    "KL as a reward": {
        "algorithm.kl_reward": 20.0,
        "algorithm.advantage_scale": "none",
        "algorithm.trimmed_ratio": 0.25,
        "rollout.fragment_size": 2,
        "train.pack_size": 3,
    },
    "KL as a reward, all weights, a window": {
        "train.lora": None,
        "train.learning_rate": 1e-4,
        "algorithm.kl_reward": 20.0,
        "algorithm.window": [1, 0, 3],
    },
    "samples of several sizes": {
        "model.sizes": [[32, 32, 1], [16, 48, 1], [48, 32, 1]],
        "rollout.fragment_size": 2,
        "train.pack_size": 3,
    },
    "groups without signal": {"rewards": {"smooth_rewards:partly_equal": 1.0}},
    OWN_STEPS_CASE: {  # also of the groups that take others' places
        "rewards": {"smooth_rewards:partly_equal": 1.0},
        "algorithm.kl_reward": 20.0,
        "rollout.refill": 1,
        "rollout.fragment_size": 2,
        "train.pack_size": 3,
        "train.adam_eps": 1e-6,
    },
}


def in_turns() -> list:
    """Every sixth case on 1+1 or 2+2 workers in turns; the others are for `make test-layouts`.

    The first one is for `make test`, too.
    """

    def mark(place: int, turn: int) -> list:
        if place % 6 or (place // 6 + turn) % 2:
            return [pytest.mark.layouts]
        return [pytest.mark.ci] if place else []

    return [
        pytest.param(
            case,
            workers,
            id=f"{case}-{workers[0]}+{workers[1]}",
            marks=mark(place, turn),
        )
        for place, case in enumerate(CASES)
        for turn, workers in enumerate([(1, 1), (2, 2)])
    ]


@pytest.mark.parametrize(("case", "workers"), in_turns())
def test_weights_equal_the_serial_reference(case, workers, tree, cluster_address, prefect_backend):
    changes = {**CASES[case], "cluster.scheduler_address": cluster_address(*workers)}
    of_prompts = with_own_steps(tree) if case == OWN_STEPS_CASE else tree
    check_weights(RunConfig.model_validate(merged(of_prompts, changes)))


@pytest.mark.parametrize(
    "layout", ["elastic", *(pytest.param(own, marks=pytest.mark.ci) for own in ("tcss", "auto"))]
)
def test_one_worker_that_the_run_starts_does_both(layout, tree, prefect_backend):
    """As on one GPU, which then holds one model."""
    from flows.runtime.observers import watching

    alone = {"schedule.layout": layout, "cluster.trainer_workers": 0, "schedule.max_stale_share": 0}
    with watching(watch := Watch()):
        check_weights(RunConfig.model_validate(merged(tree, alone)))
    assert {span.device for record in watch.records for span in record.spans} == {"worker-0"}


def check_weights(config: RunConfig) -> None:
    """Train, and compare with the serial loop."""
    from digen_core.checkpoints.tensors import last_state

    run_dir = train_only(config)
    expected = reference(config)

    state = last_state(run_dir)
    moved = distance(expected.weights, initial(config))
    # An iteration whose groups all carry no signal makes no version.
    assert state.version == sum(row["train/grad_norm"] > 0 for row in expected.metrics) >= 2
    assert moved > 1e-4, "the weights did not move, so the test would show nothing"
    assert distance(state.weights, expected.weights) < TOLERANCE[config.model.dtype]
    assert distance(state.ema, expected.ema) < TOLERANCE[config.model.dtype]
