"""Losses, gradients, advantages and schedules against recorded ones of the published code."""

import json
import re

import numpy as np
import pytest
import torch

from digen_core.config.train import TrainConfig
from digen_core.maths.advantages import best_of_n
from digen_core.maths.ddpo import running_advantages
from digen_core.maths.diffusion_nft import nft_loss, optimality
from digen_core.maths.forward_process import noised, old_policy_decay
from digen_core.maths.grpo import clipped_surrogate, group_advantages
from digen_core.maths.grpo_guard import guarded_surrogate
from digen_core.maths.kl import flowgrpo_kl, transition_kl
from digen_core.maths.windows import mix_grpo_window
from digen_core.training.optimizer import moving_average, step_average
from support.oracle_cases import ROUNDING, assert_within, extra, oracle

GRADIENT = "loss|policy_loss|ratio|grad_log_prob|grad_mean"
TESTED = {
    "ppo": (
        r"in/(lp_old|lp_new|adv|mean|mean_ref|mean_old|std|sqrt_dt)",
        rf"flowgrpo/beta[\d.e-]+/clip[\d.e-]+/({GRADIENT}|kl_loss)",
        rf"guard/beta0\.0/clip[\d.e-]+/({GRADIENT}|ratio_mean_bias)",
    ),
    "adv": (
        r"in/(prompt_id|rewards)",
        r"flowgrpo/global_std_(True|False)/grpo(_2d)?",
        r"ddpo/1",
    ),
    "dance": (
        r"adv/(in/rewards|use_group_(True|False))",
        r"loss/(loss|ratio|grad_log_prob)",
        r"bestofn/(in|\d+)",
    ),
    "ema": (r"flowgrpo_decay[\d.]+_int\d+", r"decay_at_step"),
    "nft": (
        r"in/(x0|eps|t|xt|v_old|v_new|v_ref|adv)",
        r"beta[\d.e-]+/\w+/(loss|policy_loss|r|per_sample|kl|grad_v)",
        r"decay_type[012]",
    ),
    "windows_json": ("",),
}
"""Arrays that the tests below compare with, or begin from: what their cases are found by. A group
of arrays, such as another clip range, that is added to the file is a further case of its test."""


def is_tested(key: str) -> bool:
    group, _, rest = key.partition("/")
    return any(re.fullmatch(pattern, rest) for pattern in TESTED.get(group, ()))


def found(pattern: str) -> list[str] | list[tuple[str, ...]]:
    """Return what the groups of a pattern match in the names of arrays, each case once.

    Of a pattern of one group these are texts, else tuples.
    """
    matches = (re.match(pattern, key) for key in oracle("extras"))
    cases = list(dict.fromkeys(match.groups() for match in matches if match))
    assert cases, f"extras.npz has no array {pattern}"
    return cases if len(cases[0]) > 1 else [case for (case,) in cases]


def test_no_recorded_array_is_forgotten():
    assert [key for key in oracle("extras") if not is_tested(key)] == []


@pytest.mark.parametrize(
    "key", ["ppo/new", "adv/ddpo/2", "nft/decay_type3", "ema/new", "windows_json/new", "x"]
)
def test_an_array_that_no_test_compares_with_is_seen(key: str):
    assert not is_tested(key)


# --- advantages and losses


@pytest.mark.parametrize("global_std", found(r"adv/flowgrpo/global_std_(\w+)/"))
def test_flowgrpo_advantages(global_std: str):
    rewards, group_index = extra("adv/in/rewards"), extra("adv/in/prompt_id")
    got = group_advantages(rewards, group_index, scale="batch" if global_std == "True" else "group")
    recorded = f"adv/flowgrpo/global_std_{global_std}/grpo"
    assert_within(got, extra(recorded), ROUNDING["f64"])
    assert_within(got[:, None].expand(-1, 3), extra(f"{recorded}_2d"), ROUNDING["f64"])


@pytest.mark.parametrize("use_group", found(r"dance/adv/use_group_(\w+)"))
def test_dancegrpo_advantages(use_group: str):
    rewards = extra("dance/adv/in/rewards")
    group_index = torch.arange(len(rewards)) // (4 if use_group == "True" else len(rewards))
    got = group_advantages(rewards, group_index, eps=1e-8, ddof=1)
    assert_within(got, extra(f"dance/adv/use_group_{use_group}"), ROUNDING["f32"])


@pytest.mark.parametrize(("beta", "clip"), found(r"ppo/flowgrpo/beta([\d.e-]+)/clip([\d.e-]+)/"))
def test_flowgrpo_loss_and_gradients(beta: str, clip: str):
    prefix, kl_coefficient = f"ppo/flowgrpo/beta{beta}/clip{clip}", float(beta)
    logprob = extra("ppo/in/lp_new").requires_grad_()
    mean = extra("ppo/in/mean").requires_grad_()
    root_step = extra("ppo/in/sqrt_dt")

    surrogate = clipped_surrogate(
        logprob,
        extra("ppo/in/lp_old"),
        extra("ppo/in/adv").squeeze(1).clamp(-5, 5),
        clip_range=float(clip),
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


@pytest.mark.parametrize("clip", found(r"ppo/guard/beta0\.0/clip([\d.e-]+)/"))
def test_grpo_guard_loss_and_gradients(clip: str):
    prefix = f"ppo/guard/beta0.0/clip{clip}"
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
        clip_range=float(clip),
    )
    surrogate.loss.backward()

    assert_within(bias[0], extra(f"{prefix}/ratio_mean_bias"), 1e-9)
    assert_within(surrogate.ratio, extra(f"{prefix}/ratio"), 1.2e-7)
    assert_within(surrogate.loss, extra(f"{prefix}/policy_loss"), ROUNDING["f32"])
    assert_within(surrogate.loss, extra(f"{prefix}/loss"), ROUNDING["f32"])
    torch.testing.assert_close(
        logprob.grad, extra(f"{prefix}/grad_log_prob"), atol=1e-12, rtol=2e-6
    )
    torch.testing.assert_close(mean.grad, extra(f"{prefix}/grad_mean"), atol=1e-8, rtol=2e-6)


def test_ddpo_advantages():
    prompts = [str(prompt) for prompt in extra("adv/in/prompt_id").tolist()]
    got, history = running_advantages(
        extra("adv/in/rewards"), prompts, {}, buffer_size=16, min_count=3
    )
    # prompt 3 has two rewards only, so the batch's statistics hold
    assert_within(got, extra("adv/ddpo/1"), ROUNDING["f64"])
    assert history["3"] == (7.0, 7.0)


@pytest.mark.parametrize("count", found(r"dance/bestofn/(\d+)"))
def test_dancegrpo_best_of_n(count: str):
    scores, recorded = extra("dance/bestofn/in"), extra(f"dance/bestofn/{count}")
    got = best_of_n(scores, torch.zeros(len(scores), dtype=torch.long), int(count))
    assert got.tolist() == sorted(recorded.tolist())


# --- DiffusionNFT


@pytest.mark.parametrize(("beta", "mode"), found(r"nft/beta([\d.e-]+)/(\w+)/"))
def test_diffusion_nft_loss_and_gradient(beta: str, mode: str):
    prefix = f"nft/beta{beta}/{mode}"
    x_0, sigma = extra("nft/in/x0"), extra("nft/in/t")
    x = noised(x_0, extra("nft/in/eps"), sigma)
    assert_within(x, extra("nft/in/xt"), 1.2e-7)
    share = optimality(extra("nft/in/adv").squeeze(1), mode=mode)
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
        beta=float(beta),
    )
    got.loss.backward()

    assert_within(got.policy, extra(f"{prefix}/per_sample"), ROUNDING["f32"])
    assert_within(got.policy.mean() * 5, extra(f"{prefix}/policy_loss"), ROUNDING["f32"])
    assert_within(got.reference.mean(), extra(f"{prefix}/kl"), 1.2e-7)
    assert_within(got.loss, extra(f"{prefix}/loss"), ROUNDING["f32"])
    torch.testing.assert_close(velocity.grad, extra(f"{prefix}/grad_v"), atol=1e-8, rtol=5e-6)


@pytest.mark.parametrize("published", found(r"nft/decay_type(\d)"))
def test_decay_of_the_old_policy(published: str):
    schedule = ("none", "ramp", "late_ramp")[int(published)]
    recorded = oracle("extras")[f"nft/decay_type{published}"]
    got = [old_policy_decay(update, schedule) for update in range(len(recorded))]
    np.testing.assert_allclose(got, recorded, rtol=1e-15, atol=0)


# --- moving average


@pytest.mark.parametrize(("decay", "every"), found(r"ema/flowgrpo_decay([\d.]+)_int(\d+)"))
def test_moving_average(decay: str, every: str):
    # Recorded: weights t at optimizer steps t = 1, 2, ..., averaged where `every` divides t + 1.
    recorded = oracle("extras")[f"ema/flowgrpo_decay{decay}_int{every}"]
    decays = extra("ema/decay_at_step")
    config = TrainConfig(ema_decay=float(decay), ema_every=int(every))
    at_each = TrainConfig(ema_decay=0.9)

    def weights(value: float) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.full((1,), value, dtype=torch.float64))]

    average, got = moving_average(weights(0.0), config), []
    for t in range(1, len(recorded) + 1):
        step_average(average, weights(float(t)), t, config)
        got.append(average.shadow_params[0].item())
        single = moving_average(weights(1.0), at_each)  # goes to the decay at this step
        step_average(single, weights(0.0), t, at_each)
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
