"""Losses, gradients, advantages and schedules against recorded ones of the published code."""

import json

import numpy as np
import pytest
import torch
from oracle_cases import assert_within, extra, oracle

from digen_core.algorithms.advantages import best_of_n
from digen_core.algorithms.ddpo import running_advantages
from digen_core.algorithms.diffusion_nft import nft_loss, noised, old_policy_decay, optimality
from digen_core.algorithms.grpo import clipped_surrogate, group_advantages
from digen_core.algorithms.grpo_guard import guarded_surrogate
from digen_core.algorithms.kl import flowgrpo_kl, transition_kl
from digen_core.algorithms.mix_grpo import mix_grpo_window
from digen_core.train_config import TrainConfig
from digen_core.training.optimizer import moving_average, step_average

TESTED = (
    "ppo/",
    "adv/",
    "dance/",
    "ema/",
    "nft/",
    "windows_json",
)


def test_no_recorded_array_is_forgotten():
    assert {key for key in oracle("extras") if not key.startswith(TESTED)} == set()


# --- advantages and losses


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


def test_grpo_guard_loss_and_gradients():
    prefix = "ppo/guard/beta0.0/clip2e-06"
    logprob = extra("ppo/in/lp_new").requires_grad_()
    mean = extra("ppo/in/mean").requires_grad_()
    root_step = extra("ppo/in/sqrt_dt")
    std = extra("ppo/in/std") * root_step  # what the published code calls std is g

    # The published code averages the bias over the batch; ours is per trajectory.
    bias = transition_kl(mean, extra("ppo/in/mean_old"), std).mean().expand(len(mean))
    surrogate = guarded_surrogate(
        logprob,
        extra("ppo/in/lp_old"),
        bias,
        std,
        root_step.flatten() ** 2,
        extra("ppo/in/adv").squeeze(1).clamp(-5, 5),
        clip_range=2e-6,
    )
    surrogate.loss.backward()

    assert_within(bias[0], extra(f"{prefix}/ratio_mean_bias"), 1e-9)
    assert_within(surrogate.ratio, extra(f"{prefix}/ratio"), 1.2e-7)
    assert_within(surrogate.loss, extra(f"{prefix}/policy_loss"), 1.2e-6)
    assert_within(surrogate.loss, extra(f"{prefix}/loss"), 1.2e-6)
    torch.testing.assert_close(
        logprob.grad, extra(f"{prefix}/grad_log_prob"), atol=1e-12, rtol=1.2e-6
    )
    torch.testing.assert_close(mean.grad, extra(f"{prefix}/grad_mean"), atol=1e-8, rtol=2e-6)


def test_ddpo_advantages():
    prompts = [str(prompt) for prompt in extra("adv/in/prompt_id").tolist()]
    got, history = running_advantages(
        extra("adv/in/rewards"), prompts, {}, buffer_size=16, min_count=3
    )
    # prompt 3 has two rewards only, so the batch's statistics hold
    assert_within(got, extra("adv/ddpo/1"), 4.5e-16)
    assert history["3"] == (7.0, 7.0)


def test_dancegrpo_best_of_n():
    scores, recorded = extra("dance/bestofn/in"), extra("dance/bestofn/4")
    got = best_of_n(scores, torch.zeros(len(scores), dtype=torch.long), 4)
    assert got.tolist() == sorted(recorded.tolist())


# --- DiffusionNFT


def test_diffusion_nft_loss_and_gradient():
    prefix = "nft/beta0.1/all"
    x_0, sigma = extra("nft/in/x0"), extra("nft/in/t")
    x = noised(x_0, extra("nft/in/eps"), sigma)
    assert_within(x, extra("nft/in/xt"), 1.2e-7)
    share = optimality(extra("nft/in/adv").squeeze(1))
    assert_within(share, extra(f"{prefix}/r"), 1.2e-7)

    velocity = extra("nft/in/v_new").requires_grad_()
    got = nft_loss(
        velocity,
        extra("nft/in/v_old"),
        extra("nft/in/v_ref"),
        x,
        x_0,
        sigma,
        share,
        beta=0.1,
    )
    got.loss.backward()

    assert_within(got.policy, extra(f"{prefix}/per_sample"), 1.2e-6)
    assert_within(got.policy.mean() * 5, extra(f"{prefix}/policy_loss"), 1.2e-6)
    assert_within(got.reference.mean(), extra(f"{prefix}/kl"), 1.2e-7)
    assert_within(got.loss, extra(f"{prefix}/loss"), 1.2e-6)
    torch.testing.assert_close(velocity.grad, extra(f"{prefix}/grad_v"), atol=1e-8, rtol=5e-6)


@pytest.mark.parametrize(("published", "schedule"), [(0, "none"), (1, "ramp"), (2, "late_ramp")])
def test_decay_of_the_old_policy(published: int, schedule: str):
    recorded = oracle("extras")[f"nft/decay_type{published}"]
    got = [old_policy_decay(update, schedule) for update in range(len(recorded))]
    np.testing.assert_allclose(got, recorded, rtol=1e-15, atol=0)


# --- moving average


def test_moving_average():
    # Recorded: weights t at optimizer steps t = 1, 2, ..., averaged where 8 divides t + 1.
    recorded, decays = oracle("extras")["ema/flowgrpo_decay0.9_int8"], extra("ema/decay_at_step")
    config = TrainConfig(ema_decay=0.9, ema_every=8)
    every = config.model_copy(update={"ema_every": 1})

    def weights(value: float) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.full((1,), value, dtype=torch.float64))]

    average, got = moving_average(weights(0.0), config), []
    for t in range(1, len(recorded) + 1):
        step_average(average, weights(float(t)), t, config)
        got.append(average.shadow_params[0].item())
        single = moving_average(weights(1.0), every)  # goes to the decay at this step
        step_average(single, weights(0.0), t, every)
        assert single.shadow_params[0].item() == pytest.approx(decays[t - 1].item(), rel=1e-15)
    np.testing.assert_allclose(got, recorded, rtol=1.2e-7)  # recorded in float32


# --- MixGRPO's windows

WINDOWS = json.loads(str(oracle("extras")["windows_json"]))
NUM_STEPS, SIZE = 23, 4
FULL = [list(range(start, start + SIZE)) for start in range(NUM_STEPS - SIZE + 1)]


def ours(name: str, num_iterations: int) -> list[list[int]]:
    given = WINDOWS[name]["args"]
    assert (given["max_timesteps"], given["group_size"]) == (NUM_STEPS, SIZE)
    strategy = given["sample_strategy"]
    iterations = given["max_iters_per_group" if strategy == "decay" else "iters_per_group"]
    return [
        list(
            mix_grpo_window(
                iteration,
                num_steps=NUM_STEPS,
                size=SIZE,
                strategy=strategy,
                stride=given["prog_overlap_step"] if given["prog_overlap"] else SIZE,
                iterations=iterations,
                min_iterations=given.get("min_iters_per_group", 1),
                roll_back=given["roll_back"],
                # the published code seeds each draw with the iteration before
                generator=np.random.default_rng(max(iteration - 1, 0)),
            )
        )
        for iteration in range(num_iterations)
    ]


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_mixgrpo(name: str):
    # Published windows shrink at the end of the steps, down to empty ones; ours do not.
    recorded = WINDOWS[name]["windows"]
    got = ours(name, len(recorded))
    assert all(window in FULL for window in got)
    if "random" in name:
        assert recorded[0] == FULL[0]  # the published first window is not drawn
        assert got[1:] == recorded[1:]
        return
    shortened = [index for index, window in enumerate(recorded) if len(window) < SIZE]
    agreeing = shortened[0] if shortened else len(recorded)
    assert got[:agreeing] == recorded[:agreeing]
    assert agreeing >= 20


def test_windows_of_mixgrpo_at_the_end_of_the_steps():
    default = next(name for name in WINDOWS if name.startswith("default_script"))
    recorded = WINDOWS[default]["windows"]
    assert recorded[23 * 25 : 24 * 25] == [[]] * 25  # nothing was trained
    got = ours(default, 550)  # 20 positions of 25 iterations, and again
    assert got[475:] == [FULL[19]] * 25 + recorded[:50]

    assert WINDOWS["progressive_noroll"]["windows"][-14:] == [[]] * 14
    assert ours("progressive_noroll", 60)[38:] == [FULL[19]] * 22

    assert WINDOWS["progressive_nooverlap"]["windows"][25:30] == [[20, 21, 22]] * 5
    assert ours("progressive_nooverlap", 31)[25:] == [FULL[19]] * 5 + [FULL[0]]
