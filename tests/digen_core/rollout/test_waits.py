"""What a GPU would be waited for between its passes, as a device that is none tells."""

import pytest
import torch

from digen_core.config.rollout import RolloutConfig
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from support.families import FAMILIES, load_tiny, sliced
from support.second_device import second_device, told

GROUP, STEPS = (0, 0), 4
WITHOUT_WAITS = [name for name in FAMILIES if name not in ("qwen_image", "ltx2")]
"""Of the others diffusers sends numbers to the device in each pass."""


@pytest.mark.ci_but_one
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


@pytest.mark.ci_but_one
@pytest.mark.parametrize("transition", ["flow_sde", "cps"])
def test_a_step_is_looked_at_once_the_next_one_is_launched(transition, tiny_flux, monkeypatch):
    """Noise is sent meanwhile: to a GPU without a wait."""
    rows, config = Rows.of(GROUP, range(2)), RolloutConfig(num_steps=STEPS, transition=transition)
    with second_device() as device:
        policy = load_tiny(tiny_flux, "flux", device=device)
        velocity = type(policy).velocity
        x = initial_latent(policy, seed=0, group=GROUP, samples=range(2))
        condition = rows.conditions({GROUP: policy.encode(["a red circle"])})

        def told_of(*arguments):
            waits.append("velocity")
            return velocity(*arguments)

        monkeypatch.setattr(type(policy), "velocity", told_of)
        with told() as waits:
            done = denoise(
                policy,
                x,
                condition,
                policy.sigmas(STEPS),
                steps=range(STEPS),
                noisy_steps=range(STEPS - 1),
                config=config,
                seed=0,
                rows=rows,
            )
            assert len(list(done)) == STEPS
    of_steps = waits[waits.index("velocity") :]
    noisy = ["velocity", "sent", "velocity", *["sent", "read", "velocity"] * (STEPS - 2)]
    assert of_steps == [*noisy, "read", "read"]
