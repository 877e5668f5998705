"""What members have of tokens that they deal, in tests."""

import torch
from torch import Tensor

from digen_core.gang.context_parallel import (
    all_tokens,
    heads_of_own_tokens,
    own_tokens,
    tokens_of_own_heads,
)
from digen_core.gang.meshes import mesh_of


def sequence(number: int) -> Tensor:
    """Return the same numbers [2 samples, tokens, 4 heads, 3] for all."""
    return torch.arange(1.0, 24 * number + 1).reshape(2, number, 4, 3)


def exchanged(size: int, number: int) -> tuple[Tensor, ...]:
    """Return a member's tokens, all of its heads, those brought back, and tokens joined again.

    And the gradient, by its tokens, of a sum in which each of all heads has its own weight.
    """
    x = sequence(number)
    mesh = mesh_of(torch.device("cpu"), ulysses=size)
    own = own_tokens(x, mesh).requires_grad_()
    heads = tokens_of_own_heads(own, mesh, number)
    back = heads_of_own_tokens(heads, mesh)
    joined = all_tokens(back, mesh, number)
    (joined * x).sum().backward()
    assert own.grad is not None
    return own.detach(), heads.detach(), back.detach(), joined.detach(), own.grad
