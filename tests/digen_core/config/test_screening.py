"""Configs with candidates: what cannot work is told in a line, and groups are known by kind."""

import pytest
from pydantic import ValidationError

from digen_core.config.run import RunConfig

SMALL = {"group_size": 4, "num_steps": 6, "fragment_size": 2, "prompts_per_iteration": 3}
FEW = {"candidates": 8, "num_steps": 2}


def config_of(screening, rollout=None, **others):
    return RunConfig.model_validate(
        {"rollout": {**SMALL, "screening": screening, **(rollout or {})}, **others}
    )


@pytest.mark.parametrize(
    ("screening", "changes", "message"),
    [
        ({"candidates": 4}, {},
         "candidates is 4, of which rollout.group_size .4. are chosen; use more"),
        ({"candidates": 8, "num_steps": 7}, {},
         "screening.num_steps is 7, above rollout.num_steps .6.; use fewer"),
        (FEW, {"rollout": {"initial_noise": "group"}},
         "initial_noise 'group' and branches 1 samples of a group share one; use 'sample' and 1"),
        (FEW, {"rollout": {"branches": 2}},
         "initial_noise 'sample' and branches 2 samples of a group share one"),
        (FEW, {"rollout": {"precision": "float8"}, "algorithm": {"correction": "recompute"}},
         "rollout.screening.precision is 'model', so that candidates would cost more than samples"),
        ({"candidates": 65536}, {"rollout": {"prompts_per_iteration": 64}},
         "screening.candidates .65536. x 6 steps of each, is 25167360 denoising steps"),
        ({"candidates": 65536, "num_steps": 5}, {"rollout": {"prompts_per_iteration": 60}},
         "screening.candidates .65536. x 5 steps of each, is 19662240 denoising steps"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(screening, changes, message):
    with pytest.raises(ValidationError, match=message):
        config_of(screening, **changes)


def test_samples_from_files_are_not_chosen():
    columns = ["a", "b", "c", "d"]
    prompts = {"train": "p.parquet", "evaluation_fraction": 0.1, "sample_columns": columns}
    with pytest.raises(ValidationError, match=r"samples come from files .prompts.sample_columns."):
        config_of(FEW, prompts=prompts, algorithm={"type": "diffusion_nft"})


def test_groups_are_of_candidates_and_of_samples_in_turn():
    """Three prompts: 0-2 candidates, 3-5 samples, then the same of prompts that are drawn."""
    rollout = config_of(FEW, {"refill": 1}).rollout
    assert [group for group in range(rollout.num_drawn) if rollout.screens(group)] == [
        0, 1, 2, 6, 7, 8
    ]  # fmt: skip
    assert (rollout.num_drawn, rollout.first_group) == (12, 3)
    plain = config_of(None, {"refill": 1}).rollout
    assert (plain.num_drawn, plain.first_group, plain.screens(0)) == (6, 0, False)


def test_float8_is_known_by_the_key_that_asks_for_it():
    """No correction is asked for where it is the candidates' alone."""
    alone = config_of({**FEW, "precision": "float8"}).rollout
    assert (alone.uses_float8, alone.key_of_float8) == (True, "rollout.screening.precision")
    assert (alone.precision, alone.of_candidates.precision) == ("model", "float8")
    both = config_of(
        {**FEW, "precision": "float8"},
        {"precision": "float8"},
        algorithm={"correction": "recompute"},
    ).rollout
    assert (both.uses_float8, both.key_of_float8) == (True, "rollout.precision")
    assert not config_of(FEW).rollout.uses_float8
