"""Losses, gradients, advantages and schedules against recorded ones of the published code."""

import pytest
import torch
from oracle_cases import assert_within, extra

from digen_core.algorithms.grpo import clipped_surrogate, group_advantages
from digen_core.algorithms.kl import flowgrpo_kl


@pytest.mark.parametrize(("global_std", "scale"), [(False, "group"), (True, "batch")])
def test_flowgrpo_advantages(global_std: bool, scale: str):
    rewards, group_index = extra("adv/in/rewards"), extra("adv/in/prompt_id")
    got = group_advantages(rewards, group_index, scale=scale)
    recorded = f"adv/flowgrpo/global_std_{global_std}/grpo"
    assert_within(got, extra(recorded), 4.5e-16)
    assert_within(got[:, None].expand(-1, 3), extra(f"{recorded}_2d"), 4.5e-16)


@pytest.mark.parametrize("use_group", [False, True])
def test_dancegrpo_advantages(use_group: bool):
    rewards = extra("dance/adv/in/rewards")
    group_index = torch.arange(len(rewards)) // (4 if use_group else len(rewards))
    got = group_advantages(rewards, group_index, eps=1e-8, ddof=1)
    assert_within(got, extra(f"dance/adv/use_group_{use_group}"), 1.2e-6)


@pytest.mark.parametrize(
    ("kl_coefficient", "clip_range"), [(0.0, 1e-4), (0.04, 0.2)], ids=["beta0", "beta0.04"]
)
def test_flowgrpo_loss_and_gradients(kl_coefficient: float, clip_range: float):
    prefix = f"ppo/flowgrpo/beta{kl_coefficient}/clip{clip_range}"
    logprob = extra("ppo/in/lp_new").requires_grad_()
    mean = extra("ppo/in/mean").requires_grad_()
    root_step = extra("ppo/in/sqrt_dt")

    surrogate = clipped_surrogate(
        logprob,
        extra("ppo/in/lp_old"),
        extra("ppo/in/adv").squeeze(1).clamp(-5, 5),
        clip_range=clip_range,
    )
    # what FlowGRPO calls std here is g
    kl = flowgrpo_kl(
        mean,
        extra("ppo/in/mean_ref"),
        extra("ppo/in/std") * root_step,
        root_step.flatten().double() ** 2,
    ).mean()
    loss = surrogate.loss + kl_coefficient * kl
    loss.backward()

    assert_within(surrogate.ratio, extra(f"{prefix}/ratio"), 1e-7)
    assert_within(surrogate.loss, extra(f"{prefix}/policy_loss"), 1e-7)
    assert_within(loss, extra(f"{prefix}/loss"), 1e-7)
    torch.testing.assert_close(logprob.grad, extra(f"{prefix}/grad_log_prob"), atol=0, rtol=1e-6)
    # the gradients are 1e-5 and smaller, so they need a tolerance of their own size
    torch.testing.assert_close(mean.grad, extra(f"{prefix}/grad_mean"), atol=1e-11, rtol=1e-6)
    if kl_coefficient:
        torch.testing.assert_close(kl.detach(), extra(f"{prefix}/kl_loss"), atol=0, rtol=1e-6)


def test_dancegrpo_loss_and_gradients():
    # gradient accumulation over 4 prompts and 9 trained steps divides DanceGRPO's loss by 36
    logprob = extra("ppo/in/lp_new").requires_grad_()
    surrogate = clipped_surrogate(
        logprob,
        extra("ppo/in/lp_old"),
        extra("ppo/in/adv").squeeze(1).clamp(-5, 5),
        clip_range=1e-4,
    )
    (surrogate.loss / 36).backward()

    assert_within(surrogate.ratio, extra("dance/loss/ratio"), 1e-7)
    assert_within(surrogate.loss / 36, extra("dance/loss/loss"), 1e-8)
    torch.testing.assert_close(logprob.grad, extra("dance/loss/grad_log_prob"), atol=0, rtol=1e-6)
