"""Which settings a replay takes: its samples, and how they are dealt to updates, stay."""

import pytest

from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.reference.replay import last_groups, replay_config


@pytest.mark.parametrize(
    ("updates", "overrides", "message"),
    [
        (2, {}, "train.updates_per_iteration is 2: the versions between the updates"),
        (2, {"train.updates_per_iteration": 1}, "train.updates_per_iteration cannot be changed"),
        (1, {"train.updates_per_iteration": 2}, "train.updates_per_iteration cannot be changed"),
        (1, {"train.dealt_by": "samples"}, "train.dealt_by cannot be changed in a replay"),
    ],
)
def test_several_updates_are_not_replayed(tmp_path, updates, overrides, message):
    config = RunConfig.model_validate({"train": {"updates_per_iteration": updates}})
    (tmp_path / CONFIG_OF_RUN).write_text(config.model_dump_json())
    with pytest.raises(UserError, match=message):
        replay_config(tmp_path, overrides)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([0, 1, 2, 4, 7], [0, 2, 7]),  # 1 was replaced, and 4, too
        ([3, 4, 5, 10], [3, 5, 10]),  # candidates 0-2 and 6-8 have no rows
        ([3, 4, 5, 6], [4, 5, 6]),  # but 6, which were dropped
    ],
)
def test_groups_that_others_took_the_place_of_are_not_trained(groups, expected):
    """With 3 prompts an iteration; whichever come first."""
    assert last_groups(reversed(groups), 3) == expected
