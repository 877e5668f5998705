"""Configs of rewards that compare the samples of a group: what cannot work is told in a line."""

import pytest
from pydantic import ValidationError

from digen_core.config.rewards import called, relative, that_see
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.preflight.rewards import check_rewards, notes_on_rewards

SERVER = {"url": "http://127.0.0.1:1/v1", "model": "m"}
PAIRWISE = {"type": "pairwise", **SERVER}
RANKED = {"type": "ranked", "of": "shapes"}
REMOTE = {"type": "remote", "url": "http://127.0.0.1:1/score", "sees": "groups"}


@pytest.mark.parametrize(
    ("rewards", "changes", "message"),
    [
        ({"r": RANKED}, {},
         "rewards.r.of is 'shapes', which is no reward of this config; add it, with weight = 0"),
        ({"r": {**RANKED, "of": "r"}}, {}, "rewards.r.of is 'r', which ranks scores itself"),
        ({"shapes": 1, "q": RANKED, "r": {**RANKED, "of": "q"}}, {},
         "rewards.r.of is 'q', which ranks scores itself; name the reward whose scores they are"),
        ({"p": {**PAIRWISE, "opponents": 4}}, {"rollout": {"group_size": 4}},
         "rewards.p.opponents is 4, but of a group of 4 .rollout.group_size. there are 3"),
        ({"p": {**PAIRWISE, "opponents": 3}}, {"rollout": {"group_size": 5}},
         "opponents .3. and rollout.group_size .5. are odd, so not every sample can have as many"),
        ({"p": {**REMOTE, "batch_size": 3}}, {"rollout": {"group_size": 4}},
         "rewards.p sees groups, but its batch_size .3. is below rollout.group_size .4.; a group"),
        ({"p": {**PAIRWISE, "opponents": 3}},
         {"rollout": {"group_size": 4, "fragment_size": 1, "screening": {"candidates": 7}}},
         "opponents .3. and rollout.screening.candidates .7. are odd, so not every sample"),
        ({"p": {**REMOTE, "batch_size": 4}},
         {"rollout": {"group_size": 4, "screening": {"candidates": 5}}},
         "batch_size .4. is below rollout.screening.candidates .5.; a group has to fit"),
        ({"p": PAIRWISE}, {"algorithm": {"type": "ddpo"}},
         "rewards.p compares the samples of a group, but ddpo compares a prompt's rewards with"),
        ({"p": PAIRWISE}, {"checkpoints": {"keep_best": 1}},
         "checkpoints.best_by is 'evaluation/reward', but rewards that tell .* .p. do not tell"),
        ({"shapes": 1, "r": RANKED},
         {"checkpoints": {"keep_best": 1, "best_by": "reward/r/score"}},
         "checkpoints.best_by is 'reward/r/score', but rewards that tell only"),
        ({"shapes": 1, "r": RANKED},
         {"checkpoints": {"keep_best": 1, "best_by": "evaluation/r/ties"}},
         "checkpoints.best_by is 'evaluation/r/ties', but rewards that tell only"),
        ({"p": PAIRWISE}, {"checkpoints": {"keep_best": 1, "best_by": "evaluation/shapes/score"}},
         "checkpoints.best_by is 'evaluation/shapes/score', but rewards that tell only"),
        ({"shapes": 0, "r": {**RANKED, "weight": 0}}, {}, "all weigh 0; nothing would be learnt"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(rewards, changes, message):
    with pytest.raises(ValidationError, match=message):
        RunConfig.model_validate({"rewards": rewards, **changes})


def test_the_others_are_accepted_and_known_by_what_they_see():
    rewards = {
        "shapes": 0,
        "r": RANKED,
        "p": {**PAIRWISE, "opponents": 2},
        "of_pairs": {"type": "ranked", "of": "p"},
        "m:f": {"sees": "groups"},
        "far": {**REMOTE, "pool": "judges"},
    }
    tree = {"rewards": rewards, "rollout": {"group_size": 5}, "checkpoints": {"keep_best": 1}}
    tree["checkpoints"]["best_by"] = "evaluation/shapes/score"
    config = RunConfig.model_validate(tree)
    assert relative(config.rewards) == ["r", "p", "of_pairs", "m:f", "far"]
    assert list(that_see(config.rewards, "groups")) == ["p", "m:f", "far"]
    assert list(that_see(config.rewards, "samples")) == ["shapes"]
    assert list(called(config.rewards)) == ["shapes", "p", "m:f", "far"]
    assert list(config.rewards_of(None)) == ["shapes", "p", "m:f"]
    assert config.scored_elsewhere
    assert RunConfig.model_validate(config.model_dump()) == config


def test_ranks_take_no_samples_from_where_they_were_decoded():
    config = RunConfig.model_validate({"rewards": {"shapes": 0, "r": RANKED}})
    assert not config.scored_elsewhere


def test_groups_of_a_video_model_are_of_videos():
    model = {"family": "wan", "path": "a/b", "height": 16, "width": 24, "num_frames": 5}
    tree = {"rewards": {"p": PAIRWISE}, "model": model, "cluster": {"rollout_workers": 1}}
    with pytest.raises(UserError) as caught:
        check_rewards(RunConfig.model_validate(tree), [], [])
    assert str(caught.value) == (
        "rewards.p sees groups of samples, which are videos here, but it takes images; set "
        "rewards.p.takes to videos"
    )
    tree["rewards"] = {"p": {**PAIRWISE, "takes": "videos"}}
    check_rewards(RunConfig.model_validate(tree), [], [])


def test_a_run_that_nothing_else_judges_says_so():
    config = RunConfig.model_validate({"rewards": {"p": PAIRWISE, "m:f": {"sees": "groups"}}})
    (note,) = notes_on_rewards(config)
    assert note.startswith("all rewards (p, m:f) tell only the samples of a group apart, so")
    assert not notes_on_rewards(RunConfig.model_validate({"rewards": {"p": PAIRWISE, "shapes": 0}}))
