"""NaN and Inf by sample: each is named, nobody else's numbers change, and the module is found."""

import pytest
import torch
from torch import nn

from digen_core.rollout.nonfinite import Finite, nonfinite_rows, watched, with_zeros

BAD = [torch.nan, torch.inf, -torch.inf]


def test_sound_samples_are_none():
    assert nonfinite_rows({"latent": torch.ones(3, 2, 2), "log-prob": None}) == {}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_named_with_the_first_value_that_is_bad(value, dtype):
    x, logprob = torch.ones(4, 3, 2, dtype=dtype), torch.zeros(4)
    x[1, 2, 0] = logprob[1] = logprob[3] = value
    found = nonfinite_rows({"latent": x, "log-prob": logprob, "KL": None})
    assert found == {1: "latent", 3: "log-prob"}
    zeroed = with_zeros(x, found)
    for value in (x, logprob):
        known = Finite.of({"latent": x, "log-prob": logprob}).zeroed(value)
        assert torch.equal(known, with_zeros(value, found))
        assert known.dtype == value.dtype
    assert zeroed[[1, 3]].count_nonzero() == 0
    assert torch.equal(zeroed[[0, 2]], x[[0, 2]])


def test_the_module_where_it_began_comes_first():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with watched(model) as found:
        model(torch.ones(1, 2))
        assert found == []
        model[1][0].bias.data[0] = torch.nan
        model(torch.ones(1, 2))
    assert found == ["1.0", "1.1", "1"]
    model(torch.ones(1, 2))
    assert len(found) == 3, "it is not watched any more"
