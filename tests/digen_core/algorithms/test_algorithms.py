"""What algorithms say of themselves is what they do, for every one of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from digen_core.algorithms import ALGORITHMS
from digen_core.algorithms.base import Algorithm
from digen_core.algorithms.forward_process import ForwardProcess
from digen_core.algorithms.policy_gradient import PolicyGradient

SMALL = {
    "mix_grpo": {"window_size": 2, "untrained_tail": 1},
    "awm": {"num_levels": 1},
    "dgpo": {"num_levels": 2},
    "dpo": {"num_levels": 2},
}
EVERY = [found(**SMALL.get(name, {})) for name, found in ALGORITHMS.items()]


def ids(algorithm: Algorithm) -> str:
    return algorithm.type


@pytest.mark.parametrize("algorithm", EVERY, ids=ids)
@given(st.integers(3, 60), st.integers(0, 200), st.integers(0, 2**32))
def test_the_steps_of_an_iteration_are_those_that_were_promised(
    algorithm, num_steps, iteration, seed
):
    algorithm.check_steps(num_steps)
    noisy, trained = algorithm.steps(num_steps, iteration, np.random.default_rng(seed))
    assert len(trained) == algorithm.num_trained(num_steps)
    assert list(trained) == sorted(set(trained))
    assert set(trained) <= set(range(num_steps))
    if algorithm.trains_clean:
        assert noisy == ()
        assert algorithm.end_of_noise(num_steps) == 0
    else:
        assert set(trained) <= set(noisy)
        assert max(noisy) < algorithm.end_of_noise(num_steps)


@pytest.mark.parametrize("algorithm", EVERY, ids=ids)
def test_too_few_steps_are_refused(algorithm):
    changes = {"mix_grpo": {"window_size": 9}}.get(algorithm.type, {"trained_fraction": 0.01})
    with pytest.raises(ValueError, match=r"rollout\.num_steps \(5\)"):
        algorithm.model_copy(update=changes).check_steps(5)


OWN = [
    ALGORITHMS["dance_grpo"](steps_drawn_for="sample"),
    ALGORITHMS["diffusion_nft"](own_levels=True, trained_fraction=0.7),
    ALGORITHMS["diffusion_nft"](own_levels=True, num_levels=2, trained_fraction=0.8),
    ALGORITHMS["awm"](own_levels=True, num_levels=2, first_level=0, trained_fraction=1.0),
    ALGORITHMS["flow_grpo"](window=(1, 0, 3), window_drawn_for="group"),
]


@pytest.mark.parametrize("algorithm", OWN, ids=ids)
@given(st.integers(3, 60), st.integers(1, 9), st.integers(0, 2**32))
def test_steps_of_samples_are_as_many_as_promised_of_those_of_the_iteration(
    algorithm, num_steps, num_samples, seed
):
    own = algorithm.own_steps(num_samples, num_steps, np.random.default_rng(seed))
    trained = algorithm.steps(num_steps, 0, np.random.default_rng(seed)).trained
    assert len(own) == num_samples
    for steps in own:
        assert len(steps) == algorithm.num_trained(num_steps)
        assert list(steps) == sorted(set(steps))
        assert set(steps) <= set(trained)


def test_windows_of_groups_are_at_any_place():
    branching = ALGORITHMS["flow_grpo"](window=(1, 0, 9), window_drawn_for="group")
    assert branching.steps(10, 0, np.random.default_rng(0)) == (tuple(range(9)),) * 2
    drawn = [branching.own_steps(4, 10, np.random.default_rng(seed)) for seed in range(200)]
    assert all(len({*own}) == 1 for own in drawn), "all samples of a group have one"
    assert {own[0] for own in drawn} == {(step,) for step in range(9)}


def test_noise_levels_of_samples_are_any_of_the_schedule():
    published = ALGORITHMS["diffusion_nft"](own_levels=True)
    assert published.steps(10, 0, np.random.default_rng(0)).trained == tuple(range(10))
    own = published.own_steps(200, 10, np.random.default_rng(0))
    left_out = [set(range(10)) - set(levels) for levels in own]
    assert all(len(levels) == 1 for levels in left_out)
    assert set.union(*left_out) == set(range(10)), "the least noisy one, too, is trained by some"
    first = ALGORITHMS["diffusion_nft"]()
    assert first.own_steps(200, 10, np.random.default_rng(0)) == ()
    assert first.steps(10, 0, np.random.default_rng(0)).trained == tuple(range(9))


def test_noise_levels_of_samples_are_one_of_each_part_as_published():
    """14 steps, six parts of the levels from 0 to 11: two levels each."""
    published = ALGORITHMS["awm"](own_levels=True, first_level=0)
    assert published.steps(14, 0, np.random.default_rng(0)) == ((), tuple(range(12)))
    own = published.own_steps(400, 14, np.random.default_rng(0))
    for part, levels in enumerate(zip(*own, strict=True)):
        assert 150 < levels.count(2 * part) < 250
        assert levels.count(2 * part) + levels.count(2 * part + 1) == 400
    assert len({*own}) > 55, "of the 64 that there are"
    assert ALGORITHMS["awm"]().own_steps(400, 14, np.random.default_rng(0)) == ()


def test_noise_levels_of_nft_may_be_one_of_each_part_as_in_flow_factory():
    """Ten steps, two parts of the levels from 0 to 7: four levels each."""
    published = ALGORITHMS["diffusion_nft"](own_levels=True, num_levels=2, trained_fraction=0.8)
    assert published.steps(10, 0, np.random.default_rng(0)) == ((), tuple(range(8)))
    own = published.own_steps(400, 10, np.random.default_rng(0))
    assert {*own} == {(first, second) for first in range(4) for second in range(4, 8)}
    for_all = ALGORITHMS["diffusion_nft"](num_levels=2, trained_fraction=0.8)
    assert for_all.own_steps(400, 10, np.random.default_rng(0)) == ()
    drawn = {for_all.steps(10, 0, np.random.default_rng(seed)).trained for seed in range(400)}
    assert drawn == {*own}
    assert for_all.num_trained(10) == 2
    with pytest.raises(ValueError, match="leaves 1 of the noise levels, fewer than"):
        for_all.check_steps(2)


def test_each_is_of_one_kind():
    for algorithm in EVERY:
        assert isinstance(algorithm, PolicyGradient) != isinstance(algorithm, ForwardProcess)
        assert isinstance(algorithm, ForwardProcess) == algorithm.trains_clean


def test_the_old_policy_lags_behind_as_published():
    late, ramp, none = (
        ALGORITHMS["diffusion_nft"](old_policy_decay=decay)
        for decay in ("late_ramp", "ramp", "none")
    )
    assert (late.keeps_old, ramp.keeps_old, none.keeps_old) == (True, True, False)
    assert late.old_share(75) == 0
    assert late.old_share(76) == pytest.approx(0.0075)
    assert ramp.old_share(100) == pytest.approx(0.1)
    assert ramp.old_share(10_000) == 0.5
    assert none.old_share(100) == 0
    assert all(not other.keeps_old and other.old_share(9) == 0 for other in EVERY)


def test_clips_are_those_of_the_loss():
    clips = {found.type: found.ratio_clip for found in EVERY}
    forward = [clips.pop(found.type) for found in EVERY if found.trains_clean]
    assert set(forward) == {None}, "ratios are to another policy, not to who sampled"
    assert clips.pop("flow_dppo") is None, "the divergence is bounded instead"
    assert clips.pop("grpo_guard") is None, "normalised ratios are clipped"
    assert set(clips.values()) == {1e-4}
    assert ALGORITHMS["flow_grpo"](correction="recompute").ratio_clip is None


def test_the_divergence_in_the_reward():
    assert all(found.reward_kl is None for found in EVERY)
    assert ALGORITHMS["flow_grpo"](kl_reward=0.2).reward_kl == (0.2, "flowgrpo")
    assert ALGORITHMS["longcat"](kl_reward=0.2).reward_kl == (0.2, "gaussian")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("flow_grpo", {"correction_bounds": (1.1, 1.2)}, "0 <= low <= 1 <= high"),
        ("flow_grpo", {"kl_reward": 0.1, "mix": "advantages"}, "'advantages' makes none"),
        ("flow_grpo", {"window_drawn_for": "group"}, r"but algorithm\.window is null"),
        (
            "flow_grpo",
            {"window": (1, 0, 3), "window_drawn_for": "group", "kl_reward": 0.1},
            "trains other steps in each group",
        ),
        ("ddpo", {"min_count": 40}, r"above algorithm\.buffer_size \(32\)"),
        ("ddpo", {"mix": "advantages"}, "which has statistics of its own"),
        ("grpo_guard", {"max_divergence": 1.0}, "Extra inputs"),
    ],
)
def test_settings_that_clash_are_refused(name, settings, message):
    with pytest.raises(ValidationError, match=message):
        ALGORITHMS[name](**settings)


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"rollout\.num_steps \(8\)"):
        ALGORITHMS["flow_grpo"](window=(3, 6, 9)).check_steps(8)
