"""Two updates of one rollout, as flow_grpo makes them: numbers that its own arithmetic gave.

Recorded: the lines of `sde_step_with_logprob` (sd3_sde_with_logprob.py) and of the training loop of
train_sd3.py of yifan123/flow_grpo, run in float64 on the toy velocity and the waves below: per
prompt statistics, samples shuffled over both prompts, three of four steps trained, gradients of an
update averaged over its samples and steps, clipped to norm 1, two steps of AdamW. The second test
has all settings of its script for SD3.5 and OCR: ten steps of the shifted schedule, groups of 24,
one standard deviation for all, the KL term to the starting weights, the published learning rate.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pytest
import torch
from torch import Tensor

from deployments.shipped import shipped_configs
from digen_core.config.load import load_config
from digen_core.config.train import TrainConfig
from digen_core.control.schedule import Deal
from digen_core.maths.flow_sde import flow_sde_transition, transition_logprob
from digen_core.maths.grpo import clipped_surrogate, group_advantages
from digen_core.maths.kl import scaled_kl
from digen_core.training.optimizer import optimizer_step
from digen_core.training.train_state import initial_state

GROUPS, SIZE, TRAINED, ELEMENTS = 2, 4, 3, 6
SIGMAS = [1.0, 0.8, 0.55, 0.25, 0.0]
REWARDS = [0.1, 0.7, 0.4, 0.9, 0.2, 0.2, 0.8, 0.5]
SHUFFLED = [5, 0, 6, 3, 2, 7, 1, 4]
CONFIG = TrainConfig(learning_rate=0.015, weight_decay=1e-4, max_grad_norm=1.0)
ADVANTAGES = [
    -1.4016739355610843, 0.5771598558192697, -0.4122570398709071, 1.2367711196127213,
    -0.9041705434982273, -0.9041705434982273, 1.5069509058303787, 0.3013901811660756,
]  # fmt: skip
RECORDED = [  # of each update: loss, clip fraction, norm of its gradient, weights after it
    (-0.10946938659594707, 0.0, 0.017230876567803394, [0.8849986742802024, -0.2849995593252744]),
    (0.10967029691982334, 5 / 6, 0.018046903194900734, [0.8922194926481399, -0.2727231561208815]),
]


def wave(phase: float) -> Tensor:
    count = GROUPS * SIZE * ELEMENTS
    return torch.sin(torch.arange(count, dtype=torch.float64) * 1.3 + phase).reshape(-1, ELEMENTS)


def transition(weights: Tensor, x: Tensor, step: int):
    velocity = weights[0] * x + weights[1] * SIGMAS[step]
    levels = SIGMAS[step], SIGMAS[step + 1]
    return flow_sde_transition(x, velocity, *levels, noise_level=0.7, sigma_max=SIGMAS[1])


def sampled(weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Latents before and after the trained steps, and their log-probs."""
    latents, logprobs = [wave(0.0)], []
    for step in range(TRAINED):
        found = transition(weights, latents[-1], step)
        latents.append(found.mean + found.std * wave(step + 1.0))
        logprobs.append(transition_logprob(latents[-1], found))
    return latents, logprobs


def test_the_published_arithmetic():
    owner = torch.arange(GROUPS).repeat_interleave(SIZE)
    advantages = group_advantages(torch.tensor(REWARDS, dtype=torch.float64), owner, eps=1e-4)
    np.testing.assert_allclose(advantages.numpy(), ADVANTAGES, rtol=1e-12)
    deal = Deal.of([SHUFFLED], 2, GROUPS, SIZE)
    state = initial_state({"w": np.array([0.9, -0.3])})
    latents, behaviour = sampled(torch.from_numpy(state.weights["w"]))
    for update, (loss, clipped, norm, after) in enumerate(RECORDED):
        own = [s for s in range(8) if update in deal.updates_of(s // SIZE, s % SIZE)]
        assert own == sorted(SHUFFLED[4 * update : 4 * update + 4])
        weights = torch.from_numpy(state.weights["w"]).clone().requires_grad_()
        found = [
            clipped_surrogate(
                transition_logprob(
                    latents[step + 1][own], transition(weights, latents[step][own], step)
                ),
                behaviour[step][own],
                advantages[own],
                clip_range=1e-4,
            )
            for step in range(TRAINED)
        ]
        whole = torch.cat([part.per_pair for part in found]).sum() / (len(own) * TRAINED)
        (gradient,) = torch.autograd.grad(whole, weights)
        state = optimizer_step(state, {"w": gradient}, CONFIG, learning_rate=CONFIG.learning_rate)
        assert whole.item() == pytest.approx(loss, rel=1e-10)
        share = np.mean([float(part.clip_fraction) for part in found])
        assert share == pytest.approx(clipped), "in the second update the clip acts"
        assert state.grad_norm == pytest.approx(norm, rel=1e-10)
        np.testing.assert_allclose(state.weights["w"], after, rtol=1e-10)


SCRIPT: Final = load_config(shipped_configs()["flow_grpo_sd3_ocr"])
"""The settings of general_ocr_sd3 in the published config/grpo.py, as the recipe has them."""
NOISE_LEVELS: Final = [
    1.0, 0.9601293206214905, 0.9133489727973938, 0.857692301273346, 0.7903682589530945,
    0.7072784900665283, 0.602150559425354, 0.4648760259151459, 0.2780487835407257,
    0.008928571827709675, 0.0,
]  # fmt: skip
OF_SCRIPT: Final = [  # of each update: loss, clip fraction, norm of its gradient, weights after it
    (
        -0.023369951079245086,
        0.0,
        0.13240197621360517,
        [0.009299999703760154, -0.0032999998650732596],
    ),
    (
        0.023781339788704163,
        17 / 18,
        1.1022794105125682,
        [0.00910427863131004, -0.003107787283441474],
    ),
]


@dataclass(frozen=True)
class Toy:
    """Samples of the toy velocity: 100 (w0 x + w1 sigma), started at w = (0.009, -0.003)."""

    size: int
    steps: int

    def wave(self, phase: float) -> Tensor:
        count = GROUPS * self.size * ELEMENTS
        numbers = torch.arange(count, dtype=torch.float64)
        return torch.sin(numbers * 1.3 + phase).reshape(-1, ELEMENTS)

    def transition(self, weights: Tensor, x: Tensor, step: int):
        noise_level = SCRIPT.rollout.noise_level
        velocity = 100 * (weights[0] * x + weights[1] * NOISE_LEVELS[step])
        levels = NOISE_LEVELS[step : step + 2]
        return flow_sde_transition(
            x, velocity, *levels, noise_level=noise_level, sigma_max=NOISE_LEVELS[1]
        )


def test_the_settings_of_the_published_script():
    """Two groups of 24 samples, nine of ten steps trained, a KL term, one deviation for all."""
    algorithm, size, steps = SCRIPT.algorithm, SCRIPT.rollout.group_size, SCRIPT.num_trained_steps
    assert (size, steps, SCRIPT.train.updates_per_iteration) == (24, 9, 2)
    toy, start = Toy(size, steps), np.array([0.009, -0.003])
    numbers = torch.arange(GROUPS * size)
    owner = numbers // size
    rewards = (numbers * 7 % 13).double() / 10 + owner.double() * 0.2
    advantages = group_advantages(
        rewards, owner, scale=algorithm.advantage_scale, eps=algorithm.advantage_eps
    )
    expected = [-1.4884861148934603, 0.32358393802031715, -1.2296189644772064, 0.5824510884365713]
    np.testing.assert_allclose(advantages[:4].numpy(), expected, rtol=1e-12)
    latents, behaviour = [toy.wave(0.0)], []
    for step in range(steps):
        found = toy.transition(torch.from_numpy(start), latents[-1], step)
        latents.append(found.mean + found.std * toy.wave(step + 1.0))
        behaviour.append(transition_logprob(latents[-1], found))
    shuffled = ((numbers * 19 + 5) % len(numbers)).tolist()
    deal = Deal.of([shuffled], 2, GROUPS, size)
    state = initial_state({"w": start})
    for update, (loss, clipped, norm, after) in enumerate(OF_SCRIPT):
        own = [s for s in numbers.tolist() if update in deal.updates_of(s // size, s % size)]
        assert own == sorted(shuffled[24 * update : 24 * update + 24])
        weights = torch.from_numpy(state.weights["w"]).clone().requires_grad_()
        losses, shares = [], []
        for step in range(steps):
            x = latents[step][own]
            now = toy.transition(weights, x, step)
            reference = toy.transition(torch.from_numpy(start), x, step)
            found = clipped_surrogate(
                transition_logprob(latents[step + 1][own], now),
                behaviour[step][own],
                advantages[own],
                clip_range=algorithm.clip_range,
            )
            step_size = NOISE_LEVELS[step] - NOISE_LEVELS[step + 1]
            kl = scaled_kl(now.mean, reference.mean, now.std, step_size, scaling=algorithm.kl)
            losses.append(found.per_pair + algorithm.kl_coefficient * kl)
            shares.append(float(found.clip_fraction))
        whole = torch.stack(losses).mean()
        (gradient,) = torch.autograd.grad(whole, weights)
        rate = SCRIPT.train.learning_rate
        state = optimizer_step(state, {"w": gradient}, SCRIPT.train, learning_rate=rate)
        assert whole.item() == pytest.approx(loss, rel=1e-9)
        assert np.mean(shares) == pytest.approx(clipped)
        assert state.grad_norm == pytest.approx(norm, rel=1e-9)
        np.testing.assert_allclose(state.weights["w"], after, rtol=1e-9)
