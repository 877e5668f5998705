"""The metric by which the best versions are kept, against those that runs tell."""

import pytest
from pydantic import ValidationError

from digen_core.config.run import RunConfig


def config_of(best_by, **changes):
    checkpoints = {"keep_best": 1, "best_by": best_by}
    return RunConfig.model_validate({"checkpoints": checkpoints, **changes})


@pytest.mark.parametrize(
    ("best_by", "changes"),
    [
        ("evaluation/reward", {}),
        ("evaluation/shapes/exact", {}),
        ("reward/mean", {}),
        ("reward/shapes/exact", {}),
        ("reward/kl", {"algorithm": {"kl_reward": 0.1}}),
        ("reward/margin", {"algorithm": {"type": "dpo"}}),
        ("train/grad_norm", {}),
        ("train/replay_error", {}),
        ("train/kl", {"algorithm": {"kl_coefficient": 0.1}}),
    ],
)
def test_what_a_run_tells_is_taken(best_by, changes):
    assert config_of(best_by, **changes).checkpoints.best_by == best_by


@pytest.mark.parametrize(
    ("best_by", "changes"),
    [
        ("evaluation/shapes", {}),
        ("reward/shapes", {}),
        ("reward/exact", {}),
        ("reward/kl", {}),
        ("reward/margin", {}),
        ("train/kl", {}),
        ("train/los", {}),
        ("train/replay_error", {"algorithm": {"type": "diffusion_nft"}}),
    ],
)
def test_what_none_tells_is_refused_before_a_run_and_not_at_its_first_checkpoint(best_by, changes):
    with pytest.raises(ValidationError, match=f"checkpoints.best_by is '{best_by}', "):
        config_of(best_by, **changes)
    RunConfig.model_validate({"checkpoints": {"best_by": best_by}, **changes})  # nothing is kept
