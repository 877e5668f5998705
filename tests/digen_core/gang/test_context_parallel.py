"""Tokens that members deal: each has an equal part, and exchanges them for heads and back."""

import pytest
import torch
from torch.nn.functional import pad

from support.dealt_tokens import exchanged, sequence
from support.gang_processes import run_gang


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("size", "number"), [(2, 6), (2, 5), (4, 5)])
def test_tokens_are_exchanged_for_heads_and_back(tmp_path, size, number):
    """Of five tokens two members have three places each, four members two: zeros fill them."""
    x, each = sequence(number), -(-number // size)
    whole = pad(x, (0, 0, 0, 0, 0, each * size - number))
    for rank, (own, heads, back, joined, gradient) in enumerate(
        run_gang(size, tmp_path, exchanged, size, number)
    ):
        mine = whole[:, rank * each : (rank + 1) * each]
        assert torch.equal(own, mine)
        assert torch.equal(heads, x.chunk(size, dim=2)[rank])
        assert torch.equal(back, mine)
        assert torch.equal(joined, x)
        assert torch.equal(gradient, mine)  # none of what fills up
