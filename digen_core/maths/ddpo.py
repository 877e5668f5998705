"""DDPO: importance-weighted policy gradient with running statistics of each prompt.

Source: DDPO (arXiv:2305.13301), the importance-sampling estimator, and its PyTorch code. The
objective is ``grpo.clipped_surrogate`` of the steps' full Gaussian log-probs
(``flow_sde.transition_logprob``), for any transition of a flow model. What is its own:

    A = (reward - mean) / (std + eps)
    mean, std of the prompt's last ``buffer_size`` rewards, these included, once they are
    ``min_count``; of the whole batch before that.

Published settings: eps 1e-6, the population's std, buffer 16 or 32, min_count 16, clip range 1e-4.

For models that predict the noise, ``ddim_transition`` is DDPO's step: DDIM (arXiv:2010.02502,
eqs. 12 and 16) with its generalised noise eta,
    mean = sqrt(alpha_next) * x_0 + sqrt(1 - alpha_next - std^2) * (predicted noise),
    std  = eta * sqrt((1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next)),
    x_0  = (x - sqrt(1 - alpha) * (predicted noise)) / sqrt(alpha),
where alpha is the cumulative product of the schedule's alphas.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from digen_core.maths.flow_sde import Transition
from digen_core.maths.tensors import float32_at_least, per_trajectory

RewardHistory = Mapping[str, tuple[float, ...]]  # rewards of each prompt, the oldest first


def running_advantages(
    rewards: Tensor,
    prompts: Sequence[str],
    history: RewardHistory,
    *,
    buffer_size: int,
    min_count: int,
    eps: float = 1e-6,
) -> tuple[Tensor, RewardHistory]:
    """Return [B] float64 advantages and the history with these rewards added.

    Args:
        rewards: [B], any float dtype.
        prompts: [B] prompt of each trajectory.
        history: of earlier batches; empty at first, and not changed.
        buffer_size: how many rewards of a prompt are remembered.
        min_count: how many must be there before the prompt's own statistics are used.
        eps: added to the standard deviation.

    Raises:
        ValueError: if a reward is not finite or numbers do not match.
    """
    exact = rewards.double()
    if exact.ndim != 1 or len(prompts) != len(exact) or not 1 <= min_count <= buffer_size:
        raise ValueError(
            f"{len(prompts)} prompts, rewards {list(rewards.shape)}, min_count {min_count} and "
            f"buffer_size {buffer_size}: needs one reward per prompt, 1 <= min_count <= buffer_size"
        )
    if not bool(exact.isfinite().all()):
        bad = int(exact.isfinite().logical_not().nonzero()[0])
        raise ValueError(f"reward {bad} of prompt {prompts[bad]!r} is {exact[bad].item()}")
    updated = dict(history)
    for prompt, reward in zip(prompts, exact.tolist(), strict=True):
        updated[prompt] = (*updated.get(prompt, ()), reward)[-buffer_size:]
    statistics = {}
    for prompt in set(prompts):
        known = updated[prompt]
        values = exact.new_tensor(known) if len(known) >= min_count else exact
        statistics[prompt] = torch.stack([values.mean(), values.std(correction=0)])
    mean, std = torch.stack([statistics[prompt] for prompt in prompts], dim=1)
    return (exact - mean) / (std + eps), updated


def ddim_transition(
    x: Tensor,
    predicted_noise: Tensor,
    alpha: float | Tensor,
    alpha_next: float | Tensor,
    *,
    eta: float,
) -> Transition:
    """Return the DDIM distribution of the next latent.

    Args:
        x: [B, ...] current latent.
        predicted_noise: [B, ...] model output.
        alpha: cumulative alpha of the current timestep in (0, 1), one number or [B].
        alpha_next: of the next one, in (alpha, 1].
        eta: 1 is DDPM's noise, 0 no noise.

    Raises:
        ValueError: if shapes do not match or the step does not denoise.
    """
    if x.ndim < 2 or x.shape != predicted_noise.shape:
        raise ValueError(
            f"x {list(x.shape)} and predicted_noise {list(predicted_noise.shape)} must have one "
            "shape [B, ...]"
        )
    dtype = float32_at_least(x, predicted_noise)
    x, predicted_noise = x.to(dtype), predicted_noise.to(dtype)
    alpha, alpha_next = per_trajectory(alpha, x), per_trajectory(alpha_next, x)
    if not bool(((alpha > 0) & (alpha < alpha_next) & (alpha_next <= 1)).all()):
        raise ValueError(
            f"a step must go from alpha in (0, 1) up to alpha_next in (alpha, 1], got "
            f"{alpha.flatten().tolist()} to {alpha_next.flatten().tolist()}"
        )
    std = eta * torch.sqrt((1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next))
    clean = (x - torch.sqrt(1 - alpha) * predicted_noise) / torch.sqrt(alpha)
    direction = torch.sqrt(1 - alpha_next - std**2) * predicted_noise
    return Transition(torch.sqrt(alpha_next) * clean + direction, std)
