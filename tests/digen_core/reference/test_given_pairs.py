"""The gradient of a pair from files: that of Diffusion-DPO's published loss, label 1 preferred."""

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from digen_core.config.run import RunConfig
from digen_core.data.prompts import train_prompts
from digen_core.models.trainable import reference_weights, trainable_parameters
from digen_core.reference.group import forward_losses, sample_group, step_margins
from digen_core.rewards.failures import settle
from digen_core.rollout.steps import steps_of_iteration
from digen_core.seeding import FORWARD_NOISE, noise_of
from digen_core.training.advantages import advantages_of
from support.given import write_samples
from support.runs import merged, tree_of
from support.tiny_policies import load_trainable

BETA = 700.0


@pytest.fixture
def setting(tiny_flux, tmp_path):
    """A config of pairs, its first prompt, and a policy that has left the base model."""
    changes = write_samples(tmp_path) | {
        "prompts.sample_columns": ["jpg_0", "jpg_2"],
        "rewards": {"preferred": {"type": "given", "values": [0, 1]}},
        "rollout.group_size": 2,
        "rollout.fragment_size": 2,
        "rollout.num_steps": 5,
        "algorithm": {"type": "dpo", "beta": BETA, "num_levels": 2, "trained_fraction": 1.0},
        "train.dealt_by": "samples",
    }
    config = RunConfig.model_validate(merged(tree_of(tiny_flux, tmp_path), changes))
    torch.manual_seed(0)  # of some adapters an element of the gradient rounds to more than that
    policy = load_trainable(tiny_flux, "float64", config.train.lora, keep_reference=True)
    generator = torch.Generator().manual_seed(3)
    for parameter in trainable_parameters(policy).values():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return config, policy, train_prompts(config)[0]


def published(config, policy, prompt) -> torch.Tensor:
    """The loss as the paper has it, of the second image, which is preferred, and the first."""
    view = policy.at_size(config.model.size)
    worst, best = view.encode_samples(prompt.samples).split(1)
    condition, sigmas = view.encode([prompt.text]), view.sigmas(config.rollout.num_steps)
    terms = []
    for level in steps_of_iteration(config, 0).trained:
        sigma = sigmas[level]
        noise = noise_of(
            view.latent_shape,
            seed=config.seed,
            purpose=FORWARD_NOISE,
            group=(0, 0),
            samples=range(1),
            step=level + 1,
            shared=True,
        ).to(best)

        def error(x_0, sigma=sigma, noise=noise):
            x = (1 - sigma.double()) * x_0 + sigma.double() * noise
            velocity = view.velocity(x, sigma.expand(1), condition)
            return ((velocity - (noise - x_0)) ** 2).mean()

        with torch.no_grad(), reference_weights(view):
            base = error(best) - error(worst)
        terms.append(-logsigmoid(-BETA / 2 * (error(best) - error(worst) - base)))
    return torch.stack(terms).mean()


def test_the_gradient_of_a_pair(setting):
    config, policy, prompt = setting
    parameters = list(trainable_parameters(policy).values())
    with torch.no_grad():
        group = sample_group(config, policy, prompt, (0, 0))
        margins = step_margins(config, group)
    columns = {0: settle({"reward": np.zeros(2)}, config.rewards, prompt.scores)}
    found = advantages_of(config, columns, {0: prompt.key}, {}, {0: margins}, set())
    group.advantages = torch.from_numpy(found.values[0])
    assert (found.values[0][1] > 0).all()  # the label is 1: towards it
    assert (found.values[0][0] < 0).all()
    loss = sum(forward_losses(config, group, step).sum() for step in group.trained)
    gradient = torch.autograd.grad(loss / (2 * len(group.trained)), parameters)
    expected = torch.autograd.grad(published(config, policy, prompt), parameters)
    assert sum(float(own.abs().sum()) for own in expected) > 1e-3
    for own, wanted in zip(gradient, expected, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12)


def test_a_step_along_it_prefers_the_label(setting):
    config, policy, prompt = setting
    parameters = list(trainable_parameters(policy).values())
    before = published(config, policy, prompt)
    for parameter, own in zip(parameters, torch.autograd.grad(before, parameters), strict=True):
        parameter.data -= 1e-5 * own
    assert published(config, policy, prompt) < before
