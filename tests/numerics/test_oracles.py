"""Our maths against recorded outputs of the published implementations, in float32 and float64.

tests/data/oracles/ holds what FlowGRPO (July and November 2025), DanceGRPO and MixGRPO returned for
stored inputs. Not covered, because digen_core has no such step: FlowGRPO's Wan script (group
``wan_video5d``, a diffusion coefficient of its own), the DDIM step of epsilon-prediction models
(``ddpo``, ``dance_sd``) and, in extras.npz, GRPO-Guard, DDPO's persistent statistics, best-of-n,
EMA, DiffusionNFT and MixGRPO's windows.

The float64 recordings used float32 noise levels, up-cast, and 0.5 ln(2 pi) in float32.
"""

import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from digen_core.algorithms.flow_sde import LOGPROBS, TRANSITIONS, Transition, transition_logprob
from digen_core.algorithms.grpo import clipped_surrogate, group_advantages
from digen_core.algorithms.kl import flowgrpo_kl

DATA = Path(__file__).parents[1] / "data" / "oracles"
DTYPES = {"f32": torch.float32, "f64": torch.float64}
# Relative to max(1, |expected|). Two ulp of 1 in float64.
VALUE_TOLERANCE = {"f32": 1.2e-6, "f64": 4.5e-16}
LOGPROB_TOLERANCE = {"f32": 1.2e-6, "f64": 1e-7}

FLOWGRPO_GROUPS = ("nov_packed3d", "nov_image4d", "nov_video5d", "jul_image4d")
ZERO_NOISE_GROUP = "nov_packed3d_zero_noise"
DANCE_GROUPS = ("dance_packed3d", "dance_video5d")
NOT_COVERED = ("wan_video5d", "ddpo", "dance_sd")


class Case(NamedTuple):
    """One recorded step."""

    file: str
    group: str
    index: int
    precision: str
    label: str

    def recorded(self, key: str) -> torch.Tensor:
        values = oracle(self.file)[f"{self.group}/{self.precision}/{key}"]
        return torch.as_tensor(values[self.index])

    def setting(self, key: str) -> np.generic | np.ndarray:
        return oracle(self.file)[f"{self.group}/{key}"][self.index]

    def given(self, key: str) -> torch.Tensor:
        shape = "packed3d" if self.group == "mix" else self.group.split("_")[1]
        value = oracle(self.file)[f"in/{shape}/{key}"]
        return torch.as_tensor(value).to(DTYPES[self.precision])

    def step(self, transition: str, noise_level: float) -> Transition:
        """Return our transition at this case's inputs, from float32 noise levels."""
        sigmas = self.sigmas().float()
        step = torch.as_tensor(self.setting("step_index"))
        latents = "sample" if self.file == "flowgrpo" else "latents"
        return TRANSITIONS[transition](
            self.given(latents),
            self.given("model_output"),
            sigmas[step],
            sigmas[step + 1],
            noise_level=noise_level,
            sigma_max=float(sigmas[1]),
        )

    def sigmas(self) -> torch.Tensor:
        """Return the schedule, whose float64 values are all exact in float32."""
        return torch.as_tensor(oracle(self.file)[f"sched/{self.setting('schedule')}/sigmas"])

    def sigma_next(self) -> torch.Tensor:
        return self.sigmas()[torch.as_tensor(self.setting("step_index")) + 1]

    def step_size(self) -> torch.Tensor:
        return self.sigmas()[torch.as_tensor(self.setting("step_index"))] - self.sigma_next()


@cache
def oracle(file: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{file}.npz", allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def cases(file: str, *groups: str) -> list[Case]:
    found = []
    for group in groups:
        settings = {
            name: values
            for key, values in oracle(file).items()
            for owner, _, name in [key.partition("/")]
            if owner == group and "/" not in name
        }
        for index in range(len(settings["schedule"])):
            label = "-".join(f"{name}={values[index]}" for name, values in settings.items())
            found += [Case(file, group, index, precision, label) for precision in DTYPES]
    return found


def name_of(case: Case) -> str:
    return f"{case.group}-{case.index}-{case.precision}-{case.label}"


def assert_values(case: Case, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == DTYPES[case.precision]
    assert_within(got, expected, VALUE_TOLERANCE[case.precision])


def assert_logprobs(case: Case, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert_within(got, expected, LOGPROB_TOLERANCE[case.precision])


def assert_within(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare in float64; the error is absolute below 1 and relative above."""
    got, expected = got.detach().double(), expected.double()
    assert got.shape == expected.shape
    error = ((got - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert error <= tolerance


def test_no_group_of_cases_is_forgotten():
    recorded = {
        key.split("/")[0]
        for file in ("flowgrpo", "dancegrpo")
        for key in oracle(file)
        if key.endswith(("/schedule", "/timestep"))
    }
    assert recorded == {*FLOWGRPO_GROUPS, ZERO_NOISE_GROUP, *DANCE_GROUPS, "mix", *NOT_COVERED}


@pytest.mark.parametrize("case", cases("flowgrpo", *FLOWGRPO_GROUPS), ids=name_of)
def test_flowgrpo_step(case: Case):
    transition = {"sde": "flow_sde", "cps": "cps"}[str(case.setting("sde_type"))]
    noise_level = float(case.setting("noise_level"))
    step = case.step(transition, noise_level)

    assert_values(case, step.mean, case.recorded("mean"))
    assert_values(case, step.mean + step.std * case.given("noise"), case.recorded("prev_sample"))
    # what FlowGRPO calls std_dev_t is g for the SDE, and the standard deviation for CPS
    per_unit = case.step_size().sqrt() if transition == "flow_sde" else 1.0
    assert_values(case, step.std.flatten(), case.recorded("std_dev_t").double() * per_unit)

    logprob = LOGPROBS[transition]
    if transition == "cps" and (case.sigma_next() == 0).any():  # CPS ends without noise
        with pytest.raises(ValueError, match="deterministic"):
            logprob(case.recorded("prev_sample"), step)
        return
    assert_logprobs(case, logprob(case.recorded("prev_sample"), step), case.recorded("log_prob"))
    assert_logprobs(case, logprob(case.given("prev_given"), step), case.recorded("log_prob_given"))


@pytest.mark.parametrize("case", cases("flowgrpo", ZERO_NOISE_GROUP), ids=name_of)
def test_flowgrpo_step_without_noise(case: Case):
    # The published SDE log-probs are NaN here, those of CPS 0: we refuse both.
    transition = {"sde": "flow_sde", "cps": "cps"}[str(case.setting("sde_type"))]
    step = case.step(transition, 0.0)

    assert_values(case, step.mean, case.recorded("mean"))
    assert_values(case, step.mean, case.recorded("prev_sample"))
    assert step.std.count_nonzero() == 0
    with pytest.raises(ValueError, match="deterministic"):
        LOGPROBS[transition](case.recorded("prev_sample"), step)


@pytest.mark.parametrize("case", cases("dancegrpo", *DANCE_GROUPS), ids=name_of)
def test_dancegrpo_step(case: Case):
    noisy = case.step("dance", float(case.setting("eta")))
    # Without its SDE solver DanceGRPO still adds the noise, but around the ODE's mean.
    mean = noisy.mean if case.setting("sde_solver") else case.step("dance", 0.0).mean
    step = Transition(mean, noisy.std)

    assert_values(case, step.mean, case.recorded("mean"))
    assert_values(case, step.mean + step.std * case.given("noise"), case.recorded("prev_sample"))
    assert_values(case, step.std.flatten(), case.recorded("std").expand(len(mean)))
    got = transition_logprob(case.recorded("prev_sample"), step)
    assert_logprobs(case, got, case.recorded("log_prob"))
    got = transition_logprob(case.given("prev_given"), step)
    assert_logprobs(case, got, case.recorded("log_prob_given"))


@pytest.mark.parametrize("case", cases("dancegrpo", "mix"), ids=name_of)
def test_mixgrpo_flow_step(case: Case):
    step = case.step("flow_sde", float(case.setting("eta")))
    x_next = step.mean + step.std * case.given("noise")
    if case.setting("deterministic"):  # outside the window: the ODE's point, scored nevertheless
        x_next = case.step("flow_sde", 0.0).mean

    assert_values(case, step.mean, case.recorded("flow_mean"))
    assert_values(case, step.std.flatten(), case.recorded("flow_std").expand(len(x_next)))
    assert_values(case, x_next, case.recorded("flow_prev"))
    got = transition_logprob(case.recorded("flow_prev"), step)
    assert_logprobs(case, got, case.recorded("flow_log_prob"))
    got = transition_logprob(case.given("prev_given"), step)
    assert_logprobs(case, got, case.recorded("flow_log_prob_given"))


@pytest.mark.parametrize("case", cases("dancegrpo", "mix"), ids=name_of)
def test_mixgrpo_dance_step(case: Case):
    step = case.step("dance", float(case.setting("eta")))
    x_next = step.mean + step.std * case.given("noise")
    if case.setting("deterministic"):
        x_next = case.step("dance", 0.0).mean
        step = Transition(x_next, step.std)

    assert_values(case, x_next, case.recorded("dance_prev"))
    # MixGRPO drops the constants of the density
    constants = step.std.flatten().log() + 0.5 * math.log(2 * math.pi)
    got = transition_logprob(case.recorded("dance_prev"), step) + constants
    assert_logprobs(case, got, case.recorded("dance_log_prob_noconst"))
    got = transition_logprob(case.given("prev_given"), step) + constants
    assert_logprobs(case, got, case.recorded("dance_log_prob_given_noconst"))


def extra(key: str) -> torch.Tensor:
    return torch.as_tensor(oracle("extras")[key])


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
