"""Our steps against recorded ones of the published implementations, in float32 and float64."""

import math

import pytest
import torch

from digen_core.maths.ddpo import ddim_transition
from digen_core.maths.flow_sde import LOGPROBS, Transition, transition_logprob
from support.oracle_cases import (
    ROUNDING,
    Case,
    assert_logprobs,
    assert_values,
    assert_within,
    cases,
    on_each,
    oracle,
)

FLOWGRPO_GROUPS = ("nov_packed3d", "nov_image4d", "nov_video5d", "jul_image4d", "wan_video5d")
FLOWGRPO_TRANSITIONS = {"sde": "flow_sde", "cps": "cps", "wan": "wan_sde"}
ZERO_NOISE_GROUP = "nov_packed3d_zero_noise"
DANCE_GROUPS = ("dance_packed3d", "dance_video5d")
DDIM_GROUPS = ("ddpo", "dance_sd")


def test_no_group_of_cases_is_forgotten():
    recorded = {
        key.split("/")[0]
        for file in ("flowgrpo", "dancegrpo")
        for key in oracle(file)
        if key.endswith(("/schedule", "/timestep"))
    }
    assert recorded == {*FLOWGRPO_GROUPS, ZERO_NOISE_GROUP, *DANCE_GROUPS, "mix", *DDIM_GROUPS}


@on_each(cases("flowgrpo", *FLOWGRPO_GROUPS))
def test_flowgrpo_step(case: Case):
    transition = FLOWGRPO_TRANSITIONS[str(case.setting("sde_type"))]
    # the Wan script has no noise level
    noise_level = 1.0 if transition == "wan_sde" else float(case.setting("noise_level"))
    step = case.step(transition, noise_level)

    assert_values(case, step.mean, case.recorded("mean"))
    assert_values(case, step.mean + step.std * case.given("noise"), case.recorded("prev_sample"))
    # what FlowGRPO calls std_dev_t is the standard deviation for CPS, g for the others
    per_unit = 1.0 if transition == "cps" else case.step_size().sqrt()
    assert_values(case, step.std.flatten(), case.recorded("std_dev_t").double() * per_unit)

    logprob = LOGPROBS[transition]
    if transition == "cps" and (case.sigma_next() == 0).any():  # CPS ends without noise
        with pytest.raises(ValueError, match="deterministic"):
            logprob(case.recorded("prev_sample"), step)
        return
    assert_logprobs(case, logprob(case.recorded("prev_sample"), step), case.recorded("log_prob"))
    assert_logprobs(case, logprob(case.given("prev_given"), step), case.recorded("log_prob_given"))


@on_each(cases("flowgrpo", ZERO_NOISE_GROUP))
def test_flowgrpo_step_without_noise(case: Case):
    # The published SDE log-probs are NaN here, those of CPS 0: we refuse both.
    transition = FLOWGRPO_TRANSITIONS[str(case.setting("sde_type"))]
    step = case.step(transition, 0.0)

    assert_values(case, step.mean, case.recorded("mean"))
    assert_values(case, step.mean, case.recorded("prev_sample"))
    assert step.std.count_nonzero() == 0
    with pytest.raises(ValueError, match="deterministic"):
        LOGPROBS[transition](case.recorded("prev_sample"), step)


@on_each(cases("dancegrpo", *DANCE_GROUPS))
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


@on_each(cases("dancegrpo", "mix"))
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


@on_each(cases("dancegrpo", "mix"))
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


@pytest.mark.parametrize("group", DDIM_GROUPS)
@pytest.mark.parametrize("index", range(5))
def test_ddim_step(group: str, index: int):
    arrays = {
        key: torch.as_tensor(value)
        for key, value in oracle("dancegrpo").items()
        if key.startswith(("ddim/", "in/ddim/", group))
    }
    timestep, eta = arrays[f"{group}/timestep"][index], float(arrays[f"{group}/eta"][index])
    alphas = arrays["ddim/alphas_cumprod"]
    step_length = int(arrays["ddim/timesteps"][0] - arrays["ddim/timesteps"][1])
    step = ddim_transition(
        arrays["in/ddim/sample"],
        arrays["in/ddim/eps"],
        alphas[timestep],
        alphas[(timestep - step_length).clamp(min=0)],
        eta=eta,
    )
    x_next = arrays[f"{group}/prev_sample"][index]
    assert_within(step.mean + step.std * arrays["in/ddim/noise"], x_next, ROUNDING["f32"])
    assert_within(transition_logprob(x_next, step), arrays[f"{group}/log_prob"][index], 4e-5)
    given = transition_logprob(arrays["in/ddim/prev_given"], step)
    assert_within(given, arrays[f"{group}/log_prob_given"][index], 4e-5)
