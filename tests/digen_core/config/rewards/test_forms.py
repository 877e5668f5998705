"""What rewards are handed of samples: what is decoded, and what is needed after that."""

import pytest
from pydantic import ValidationError

from digen_core.config.rewards import forms_of
from digen_core.config.run import RunConfig
from digen_core.preflight.rewards import check_rewards

PIXELS, LATENTS = {"m:pixels": 1.0}, {"m:latents": {"takes": "latents"}}
POOLED = {"m:latents": {"takes": "latents", "pool": "p"}}
RANKED = {"ranks": {"type": "ranked", "of": "m:latents"}}
GROUPS = {"m:groups": {"takes": "latents", "sees": "groups"}}


def config_of(rewards: dict, **tables) -> RunConfig:
    pools = {own["pool"]: 1 for own in rewards.values() if isinstance(own, dict) and "pool" in own}
    tree = {"rewards": rewards, "cluster": {"reward_workers": pools}, **tables}
    return RunConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("rewards", "forms", "elsewhere"),
    [
        (PIXELS, {"images"}, set()),
        (LATENTS, {"latents"}, set()),
        (LATENTS | RANKED, {"latents"}, set()),
        (PIXELS | LATENTS, {"images", "latents"}, set()),
        (PIXELS | POOLED, {"images", "latents"}, {"latents"}),
        (PIXELS | LATENTS | GROUPS, {"images", "latents"}, {"latents"}),
        ({"m:pixels": {"takes": "videos", "pool": "p"}}, {"images"}, {"images"}),
    ],
)
def test_what_is_handed_to_rewards(rewards, forms, elsewhere):
    config = config_of(rewards)
    assert forms_of(config.rewards) == forms
    assert config.scored_elsewhere == elsewhere
    assert config.is_decoded == ("images" in forms)
    assert config_of(rewards, tracking={"keep_images": "extremes"}).is_decoded


@pytest.mark.parametrize("kind", ["remote", "judge", "pairwise"])
def test_servers_take_no_latents(kind):
    own = {"type": kind, "url": "http://127.0.0.1:1/v1", "takes": "latents"}
    own |= {} if kind == "remote" else {"model": "m"}
    with pytest.raises(ValidationError, match=r"takes[\s\S]*'images' or 'videos'"):
        RunConfig.model_validate({"rewards": {"r": own}})


def test_groups_of_a_video_model_may_be_judged_by_latents():
    own = {"type": "function", "function": "smooth_rewards:calm", "sees": "groups"}
    model = {"family": "wan", "path": "a/b", "height": 16, "width": 24, "num_frames": 5}
    check_rewards(config_of({"r": own | {"takes": "latents"}}, model=model), [], [])
