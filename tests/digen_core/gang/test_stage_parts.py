"""What a stage adds to gradients of parameters that only other stages have."""

import torch

from digen_core.gang.members import Gang
from digen_core.gang.stage_parts import gradients_of_all


def test_zeros_are_where_the_others_have_their_gradients(monkeypatch):
    """Also of a stage that has none itself: sums over members take one type of device."""
    others = {"a": (torch.Size([2, 3]), torch.float32, "meta")}
    monkeypatch.setattr(Gang, "everyone", lambda gang, own: [own, others])
    gang = Gang(rank=0, size=2, stages=2)
    ((name, value),) = gradients_of_all({}, gang)
    assert (name, value.shape, value.device.type) == ("a", (2, 3), "meta")
    own = {"b": torch.ones(1, dtype=torch.float64)}
    found = dict(gradients_of_all(own, gang))
    assert [*found] == ["b", "a"]
    assert found["b"] is own["b"]
