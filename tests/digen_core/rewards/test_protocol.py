import numpy as np

from digen_core.config.run import RunConfig
from digen_core.rewards.protocol import judged_by, sample_scores

REWARDS = RunConfig.model_validate({"rewards": {"mine:judge": 1.0, "shapes": 0.5}}).rewards


def test_a_component_may_have_parts():
    columns = {name: np.array([1.0, 2.0]) for name in ("shapes/score", "mine:judge/part/count")}
    assert sample_scores(columns, REWARDS, 2) == {name: [[1.0, 2.0]] for name in columns}
    assert judged_by(REWARDS, "mine:judge/part/count") == judged_by(REWARDS, "mine:judge/score")
    assert judged_by(REWARDS, "mine:judge/part/count") != judged_by(REWARDS, "shapes/score")
