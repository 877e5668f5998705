"""The optimizer step: torch's and diffusers' own, run statefully, and its parts by hand."""

import copy
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from diffusers.training_utils import EMAModel
from torch import nn

from digen_core.config.train import TrainConfig
from digen_core.gang.members import ALONE
from digen_core.training.contents import contents_of
from digen_core.training.optimizer import learning_rate_of, optimizer_step
from digen_core.training.train_state import OLD, PolicyVersion, TrainState, initial_state, published
from digen_core.transport.arrays import viewed
from digen_core.transport.fingerprint import content_hash

CONFIG = TrainConfig(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0, ema_decay=0.9)
SHAPES = {"a": (3, 2), "b": (4,), "idle": (2,)}
WITH_GRADIENT = ("a", "b")


def stepped(state, gradient, config):
    """The next state, and the norm of the gradient."""
    rows = {name: torch.as_tensor(value) for name, value in gradient.items()}
    found = optimizer_step(state, rows, config, learning_rate=config.learning_rate)
    return found, found.grad_norm


def test_the_learning_rate_by_hand():
    # cosine over 4 updates: (1 + cos 0)/2 = 1, (1 + cos 45)/2, (1 + cos 90)/2 = 0.5
    cosine = TrainConfig(learning_rate=2.0, learning_rate_decay="cosine")
    rates = [learning_rate_of(cosine, update, 4) for update in range(4)]
    assert rates[0] == 2.0
    assert rates[1] == pytest.approx(1 + 0.5**0.5)
    assert rates[2] == pytest.approx(1.0)
    assert learning_rate_of(TrainConfig(learning_rate=2.0), 3, 4) == 2.0


def arrays(seed: int, scale: float = 1.0, names=tuple(SHAPES)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: scale * rng.standard_normal(SHAPES[name]) for name in names}


def gradients(count: int, scale: float = 1.0) -> list[dict[str, np.ndarray]]:
    return [arrays(100 + seed, scale, WITH_GRADIENT) for seed in range(count)]


def state_of(**values: list[float]) -> TrainState:
    return initial_state({name: np.array(value) for name, value in values.items()})


def stateful(weights: dict, gradients: list[dict], config: TrainConfig) -> tuple[dict, dict, list]:
    """The same updates by an optimizer that keeps its state."""
    parameters = {name: nn.Parameter(torch.tensor(value)) for name, value in weights.items()}
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
    )
    average = EMAModel(list(parameters.values()), decay=config.ema_decay)
    norms = []
    for version, gradient in enumerate(gradients, start=1):
        for name, value in gradient.items():
            parameters[name].grad = torch.tensor(value)
        norm = nn.utils.clip_grad_norm_(parameters.values(), config.max_grad_norm)
        norms.append(float(norm))
        optimizer.step()
        if (version + 1) % config.ema_every == 0:
            average.optimization_step = version
            average.step(parameters.values())
    shadows = dict(zip(parameters, average.shadow_params, strict=True))
    return parameters, shadows, norms


def assert_equal(arrays: dict[str, np.ndarray], expected: dict[str, torch.Tensor]) -> None:
    assert arrays.keys() == expected.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, expected[name].detach().numpy(), err_msg=name)


@pytest.mark.parametrize("ema_every", [1, 2, 3])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0], ids=["small", "medium", "clipped"])
def test_five_updates_equal_stateful_ones_bit_for_bit(scale, ema_every):
    config = CONFIG.model_copy(update={"ema_every": ema_every})
    state, norms = initial_state(arrays(0)), []
    for gradient in gradients(5, scale):
        state, norm = stepped(state, gradient, config)
        norms.append(norm)
    parameters, shadows, expected_norms = stateful(arrays(0), gradients(5, scale), config)
    assert state.version == 5
    assert_equal(state.weights, parameters)
    assert_equal(state.ema, shadows)
    assert norms == expected_norms


def test_the_first_step_by_hand():
    # Adam's first step is lr * g / (|g| + eps): the gradient's size does not matter.
    config = TrainConfig(learning_rate=0.1, weight_decay=0, max_grad_norm=100)
    state, norm = stepped(state_of(a=[1.0, -2.0]), {"a": np.array([3.0, -4.0])}, config)
    assert norm == 5
    np.testing.assert_allclose(state.weights["a"], [0.9, -1.9], rtol=1e-8)
    np.testing.assert_allclose(state.exp_avg["a"], [0.3, -0.4])  # (1 - 0.9) g
    np.testing.assert_allclose(state.exp_avg_sq["a"], [0.009, 0.016])  # (1 - 0.999) g^2


def test_weight_decay_by_hand():
    # Decoupled: weights shrink by lr * weight_decay = 5%, then Adam's step of 0.1.
    config = TrainConfig(learning_rate=0.1, weight_decay=0.5)
    state, _ = stepped(state_of(a=[1.0]), {"a": np.array([0.01])}, config)
    np.testing.assert_allclose(state.weights["a"], [0.95 - 0.1], rtol=1e-5)


def test_clipping_by_hand():
    # The norm over both parameters is 5: clipped to 0.5, a tenth of the gradient is left.
    gradient = {"a": np.array([3.0]), "b": np.array([4.0])}
    config = TrainConfig(max_grad_norm=0.5)
    state, norm = stepped(state_of(a=[0.0], b=[0.0]), gradient, config)
    assert norm == 5
    np.testing.assert_allclose(state.exp_avg["a"], [0.1 * 0.3], rtol=1e-6)
    np.testing.assert_allclose(state.exp_avg["b"], [0.1 * 0.4], rtol=1e-6)


def test_a_parameter_without_gradient_is_left_alone():
    config = CONFIG.model_copy(update={"weight_decay": 0.5})
    state = start = initial_state(arrays(0))
    for gradient in gradients(3):
        state, _ = stepped(state, gradient, config)
    np.testing.assert_array_equal(state.weights["idle"], start.weights["idle"])
    np.testing.assert_array_equal(state.ema["idle"], start.weights["idle"])
    assert not state.exp_avg["idle"].any()
    assert (state.weights["a"] != start.weights["a"]).all()


def test_the_average_moves_every_third_update_only():
    config = CONFIG.model_copy(update={"ema_every": 3})
    states = [initial_state(arrays(0))]
    for gradient in gradients(6):
        states.append(stepped(states[-1], gradient, config)[0])
    changed = [
        bool((after.ema["a"] != before.ema["a"]).any()) for before, after in pairwise(states)
    ]
    assert changed == [False, True, False, False, True, False]  # at versions 2 and 5


def test_the_average_by_hand():
    # The decay is 2/11 at version 1 and 3/12 at version 2.
    first, _ = stepped(state_of(a=[1.0]), {"a": np.array([1.0])}, CONFIG)
    second, _ = stepped(first, {"a": np.array([1.0])}, CONFIG)
    average = 2 / 11 + 9 / 11 * first.weights["a"]
    np.testing.assert_allclose(first.ema["a"], average, rtol=1e-12)
    average = average / 4 + 3 / 4 * second.weights["a"]
    np.testing.assert_allclose(second.ema["a"], average, rtol=1e-12)


def test_an_average_without_warm_up_by_hand():
    # Decay is 0.9 from the first update on, and the average begins at version 0.
    config = CONFIG.model_copy(update={"ema_warmup": False})
    states = [initial_state(arrays(0))]
    for gradient in gradients(3):
        states.append(stepped(states[-1], gradient, config)[0])
    for name in SHAPES:
        zero, one, two, three = (state.weights[name] for state in states)
        expected = 0.729 * zero + 0.081 * one + 0.09 * two + 0.1 * three
        np.testing.assert_allclose(states[-1].ema[name], expected, rtol=1e-12)


def test_without_decay_the_average_is_the_weights():
    config = CONFIG.model_copy(update={"ema_decay": 0.0})
    state = initial_state(arrays(0))
    for gradient in gradients(3):
        state, _ = stepped(state, gradient, config)
        assert state.ema is state.weights


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_an_error(value):
    gradient = arrays(1, names=WITH_GRADIENT)
    gradient["b"][2] = value
    with pytest.raises(FloatingPointError, match=r"norm is (nan|inf) at version 0"):
        stepped(initial_state(arrays(0)), gradient, CONFIG)


def test_arguments_are_not_changed_and_the_step_can_be_done_again():
    state, _ = stepped(initial_state(arrays(0)), gradients(1)[0], CONFIG)
    (large,) = gradients(1, scale=100.0)  # clipping must not scale the caller's tensors
    gradient = {name: torch.tensor(value) for name, value in large.items()}
    parts = (state.weights, state.exp_avg, state.exp_avg_sq, state.ema)
    before = copy.deepcopy(parts)
    for part in parts:
        for value in part.values():
            value.flags.writeable = False  # as they arrive from another worker
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (stepped(state, gradient, CONFIG)[0] for _ in range(2))
    for part, kept in zip(parts, before, strict=True):
        assert_equal(part, {name: torch.tensor(value) for name, value in kept.items()})
    assert_equal(large, gradient)
    assert first.weights_hash == second.weights_hash != state.weights_hash
    assert (first.version, state.version) == (2, 1)


def two_steps(dtype=np.float64, *, keeps_old: bool = False) -> TrainState:
    """The state of version 2."""
    weights = {name: value.astype(dtype) for name, value in arrays(0).items()}
    gradient = {
        name: torch.from_numpy(value.astype(dtype)) for name, value in gradients(1)[0].items()
    }
    state, rate = initial_state(weights, keeps_old=keeps_old), CONFIG.learning_rate
    for _ in range(2):
        state = optimizer_step(state, gradient, CONFIG, learning_rate=rate, old_decay=0.5)
    return state


def test_what_is_published_is_named_by_its_content():
    state = two_steps()
    dtypes = dict.fromkeys(SHAPES, torch.float64)
    version, average = published(state, dtypes), published(state, dtypes, average=True)
    for found, weights in ((version, state.weights), (average, state.ema)):
        assert all(found[name] is weights[name] for name in SHAPES)  # nothing is copied
        assert PolicyVersion(2, contents_of(found, ALONE)).hash == content_hash(found)
    assert content_hash(version) == state.weights_hash != content_hash(average)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_published_is_rounded_as_torch_rounds(half):
    state = two_steps(np.float32, keeps_old=True)
    dtypes = {"a": half, "b": torch.float32, "idle": half}
    version, average = published(state, dtypes), published(state, dtypes, average=True)
    old = {name.removeprefix(OLD): v for name, v in version.items() if name.startswith(OLD)}
    for found, masters in (
        (version, state.weights),
        (old, state.old),
        (average, state.ema),
    ):
        for name, dtype in dtypes.items():
            assert found[name].nbytes == masters[name].size * dtype.itemsize
            assert viewed(found[name]).dtype == dtype
            assert torch.equal(viewed(found[name]), torch.tensor(masters[name]).to(dtype))
    assert average.keys() == old.keys() == dtypes.keys()
    for found in (version, average):
        assert content_hash(found) != state.weights_hash
    other = published(replace(state, old=state.weights), dtypes)
    assert content_hash(other) != content_hash(version)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (65520.0, torch.float16),  # half way between the largest and the next: up, to infinity
        (3.4e38, torch.bfloat16),
        (-np.inf, torch.float32),
        (np.nan, torch.float32),
    ],
)
@pytest.mark.parametrize("part", ["weights", "old", "ema"])
def test_what_is_not_finite_in_its_dtype_is_not_published(number, dtype, part):
    state = two_steps(np.float32, keeps_old=True)
    getattr(state, part)["b"][1] = number
    dtypes = {"a": torch.float32, "b": dtype, "idle": torch.float32}
    average = part == "ema"
    with pytest.raises(
        FloatingPointError, match=r"^b cannot be pushed: it has NaN or .* torch\..*"
    ):
        published(state, dtypes, average=average)
    if dtype == torch.float16:
        getattr(state, part)["b"][1] = 65519.0
        found = published(state, dtypes, average=average)
        assert float(viewed(found[f"{OLD}b" if part == "old" else "b"])[1]) == 65504


def test_version_zero():
    weights = arrays(0)
    state = initial_state(weights)
    assert (state.version, state.ema) == (0, weights)
    assert not any(value.any() for value in (*state.exp_avg.values(), *state.exp_avg_sq.values()))


def test_a_gradient_of_what_is_computed_in_float32_steps_masters_of_float64():
    narrow = {name: value.astype(np.float32) for name, value in gradients(1)[0].items()}
    same = {name: value.astype(np.float64) for name, value in narrow.items()}
    found, wanted = (stepped(initial_state(arrays(0)), own, CONFIG)[0] for own in (narrow, same))
    for name, value in wanted.weights.items():
        assert found.weights[name].dtype == np.float64
        np.testing.assert_allclose(found.weights[name], value, rtol=1e-6)


def test_float32_stays_float32():
    weights = {name: value.astype(np.float32) for name, value in arrays(0).items()}
    gradient = {name: value.astype(np.float32) for name, value in gradients(1)[0].items()}
    state, _ = stepped(initial_state(weights), gradient, CONFIG)
    for part in (state.weights, state.exp_avg, state.exp_avg_sq, state.ema):
        assert {value.dtype for value in part.values()} == {np.dtype(np.float32)}
