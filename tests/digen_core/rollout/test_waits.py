"""What a GPU would be waited for between its passes, as a device that is none tells."""

import pytest
import torch

from digen_core.rollout.sampler import initial_latent
from support.families import FAMILIES, load_tiny, sliced
from support.second_device import second_device, told

GROUP = (0, 0)
WITHOUT_WAITS = [name for name in FAMILIES if name not in ("qwen_image", "ltx2")]
"""Of the others diffusers sends numbers to the device in each pass."""


@pytest.mark.parametrize("model", sliced(WITHOUT_WAITS, often=("flux", "flux2")))
def test_a_forward_pass_is_launched_without_a_wait(model, tiny_families):
    with second_device() as device, torch.no_grad():
        policy = load_tiny(tiny_families[model], model, device=device)
        x = initial_latent(policy, seed=0, group=GROUP, samples=range(2))
        condition = policy.encode(["a red circle", "a blue square"])
        condition, sigma = policy.without_padding(condition), torch.full((2,), 0.5, device=device)
        policy.velocity(x, sigma, condition)  # the first makes tables to keep
        with told() as waits:
            policy.velocity(x, sigma, condition)
    assert waits == []
