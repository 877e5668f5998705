"""No comparison of ours passes on NaN: every check is called with one, and all code is walked.

``nan > limit`` is false, so ``if x > limit: raise`` lets it through, and Python's ``max`` loses a
NaN that is not the first. A check says ``if not x <= limit: raise``, and NumPy or torch takes the
largest of several.
"""

import ast
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args, get_origin

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ValidationError

from deployments.bench.golden import Row
from digen_core.config.run import RunConfig
from digen_core.maths import ddpo, flow_sde, grpo, kl, longcat
from digen_core.maths.correction import correction_weights
from digen_core.maths.diffusion_nft import nft_loss
from digen_core.maths.grpo_guard import guarded_surrogate
from digen_core.maths.statistics import Change
from digen_core.rewards.scoring import score_images
from digen_core.strict import AtMost
from digen_core.trace.metrics import schedule_metrics
from digen_core.trace.windows import Window
from digen_core.training.gradient import PackMetrics, add_metrics, replay_failure
from digen_core.training.optimizer import optimizer_step
from digen_core.training.train_state import initial_state
from digen_core.transport.arrays import rounded
from support.runs import distance
from tasks import replay

NAN = float("nan")
PAIRS = torch.tensor([0.1, NAN])
LATENT = torch.zeros(2, 3)
IMAGES = torch.full((1, 3, 2, 2), NAN)
CONFIG = RunConfig()


def transition(sigma=0.5, noise_level=0.7):
    return flow_sde.flow_sde_transition(
        LATENT, LATENT, sigma, 0.25, noise_level=noise_level, sigma_max=0.9
    )


def nft(beta):
    given = [LATENT] * 5
    return nft_loss(*given, sigma=0.5, optimality=torch.ones(2), beta=beta)


def stepped(gradient):
    state = initial_state({"w": np.zeros(2, np.float32)})
    return optimizer_step(state, {"w": gradient}, CONFIG.train, learning_rate=1e-3)


ONES, STD = torch.ones(2), torch.full((2, 1), NAN)
CHECKS: dict[str, Callable[[], object]] = {
    "the gradient's norm": lambda: stepped(torch.tensor([1.0, NAN])),
    "a weight": lambda: rounded({"w": np.array([0.0, NAN])}, {"w": torch.float32}),
    "a reward of a group": lambda: grpo.group_advantages(PAIRS, torch.tensor([0, 0])),
    "equal rewards": lambda: grpo.zero_variance_groups(PAIRS, torch.tensor([0, 0])),
    "rewards of a prompt": lambda: ddpo.running_advantages(
        PAIRS, ["a", "b"], {}, buffer_size=2, min_count=1
    ),
    "alphas": lambda: ddpo.ddim_transition(LATENT, LATENT, NAN, 0.9, eta=1.0),
    "bounds of a correction": lambda: correction_weights(ONES, ONES, mode="icepop", high=NAN),
    "a noise level": lambda: transition(sigma=NAN),
    "the scale of the noise": lambda: transition(noise_level=NAN),
    "the second noise level": lambda: flow_sde.odds_root(ONES, NAN),
    "the deviation of a log-prob": lambda: flow_sde.transition_logprob(
        LATENT, flow_sde.Transition(LATENT, STD)
    ),
    "the deviation of a divergence": lambda: kl.transition_kl(LATENT, LATENT, STD),
    "the length of a step": lambda: longcat.step_weights(PAIRS, ONES / 3, sigma_max=0.9),
    "the length of a guarded step": lambda: guarded_surrogate(
        ONES, ONES, bias=ONES, std=ONES, step_size=PAIRS, advantages=ONES, clip_range=0.1
    ),
    "beta": lambda: nft(NAN),
    "an image": lambda: score_images({}, {}, IMAGES, ["a"]),
    "the seconds of a window": lambda: schedule_metrics(
        [], [SimpleNamespace(name="a")], Window(0.0, NAN), 1
    ),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_check_does_not_pass_on_nan(check):
    with pytest.raises((ValueError, FloatingPointError, RuntimeError)):
        check()


SAYS: dict[str, Callable[[], bool]] = {
    "the ratio to correct": lambda: any(
        bool(correction_weights(PAIRS, ONES, mode=mode, high=2.0).isfinite().all())
        for mode in ("recompute", "truncate", "icepop", "reject")
    ),
    "a golden reward": lambda: Row(0.5, NAN, 0.1).holds,
    "noise of a change": lambda: Change(NAN, 0.1).is_noise,
    "noise of an unknown error": lambda: Change(0.1, NAN).is_noise,
    "the largest ratio, second": lambda: nan_is_lost(max_log_ratio=NAN),
    "the replay's error, second": lambda: nan_is_lost(max_log_ratio=0.0, replay_errors={"a": NAN}),
    "the replay's error": lambda: not replay_failure(PackMetrics(replay_errors={"a": NAN}), CONFIG),
    "the distance of weights": lambda: distance(*weights(NAN)) < 1,
    "the difference of a replay": lambda: difference_of_a_replay() < 1,
}


def nan_is_lost(**metrics) -> bool:
    added = add_metrics(PackMetrics(replay_errors={"a": 0.0}), PackMetrics(**metrics))
    return np.isfinite(added.max_log_ratio) and np.isfinite(added.replay_error)


def weights(second: float) -> tuple[dict, dict]:
    found = {"a": np.ones(2), "b": np.array([1.0, second])}
    return found, {"a": np.ones(2), "b": np.ones(2)}


def difference_of_a_replay() -> float:
    found, own = weights(NAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "read_checkpoint", lambda path: SimpleNamespace(weights=own))
        patch.setattr(Path, "exists", lambda path: True)
        return replay._difference(Path(), SimpleNamespace(version=1, weights=found))


@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
def test_what_is_nan_is_not_said_to_be_small(says):
    assert not says()


def test_a_bound_of_the_config_holds_nan_back():
    with pytest.raises(ValueError, match="must be at most 3"):
        AtMost(3, "why")._check(NAN)


# --- the config -------------------------------------------------------------------------------


def float_keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of a config that take a float, as far as its defaults name them; "[]": a list."""
    for name, item in model.model_fields.items():
        kinds = list(chain([item.annotation], get_args(item.annotation)))
        for kind in kinds:
            if kind is float:
                yield (*path, name)
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                is_list = get_origin(item.annotation) is tuple
                yield from float_keys(kind, (*path, name, "[]") if is_list else (*path, name))


def test_no_key_of_the_config_takes_nan():
    keys = list(float_keys(RunConfig))
    assert len(keys) > 15
    for *way, last in keys:
        tree: Any = {last: NAN}
        for key in reversed(way):
            tree = [tree] if key == "[]" else {key: tree}
        with pytest.raises(ValidationError, match=f"{last}\n"):
            RunConfig.model_validate(tree)


# --- the code ---------------------------------------------------------------------------------

PACKAGES = ("digen_core", "flows", "tasks", "deployments", "tests")
MEASURED = re.compile(
    r"\babs\((?!len)|\.(abs|max|min|norm)\(|\b\w*(errors?|difference|deviation|divergence|log_ratio)\b"
)
"""What is computed of numbers that may be NaN, by its name; what counts things is another."""


class Place(NamedTuple):
    """A line that NaN passes."""

    path: Path
    line: int
    code: str


def places() -> list[Place]:
    """Where NaN would pass."""
    root = Path(__file__).parents[2]
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return [
        Place(path.relative_to(root), *at) for path in paths for at in found_in(path.read_text())
    ]


def found_in(code: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(code)):
        if any(lets_nan_pass(node)):
            yield node.lineno, ast.unparse(node).partition("\n")[0]


def lets_nan_pass(node: ast.AST) -> Iterator[bool]:
    """Yield whether comparisons of a check, or a largest number, let NaN pass."""
    match node:
        case ast.If(test, body) if any(map(acts, body)):
            yield from map(is_loose, unnegated(test))
        case ast.Call(ast.Name("max" | "min"), arguments):
            yield from map(is_measured, arguments)


def acts(statement: ast.stmt) -> bool:
    """Whether a statement raises or warns."""
    calls = (n for n in ast.walk(statement) if isinstance(n, ast.Raise | ast.Call))
    return any(
        isinstance(n, ast.Raise) or re.search(r"\b(warn|warning|notify)$", ast.unparse(n.func))
        for n in calls
    )


def unnegated(test: ast.expr) -> Iterator[ast.Compare]:
    """Yield the comparisons of a test that are under no ``not``: with NaN they are false."""
    match test:
        case ast.UnaryOp(ast.Not()):
            return
        case ast.BoolOp(values=values):
            yield from chain.from_iterable(map(unnegated, values))
        case ast.Compare():
            yield test


def is_loose(comparison: ast.Compare) -> bool:
    order = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return any(isinstance(op, order) for op in comparison.ops) and is_measured(comparison)


def is_measured(node: ast.expr) -> bool:
    return MEASURED.search(ast.unparse(node)) is not None


def test_no_code_lets_nan_pass():
    assert places() == []


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("if error > bound:\n    raise ValueError", True),
        ("if kept and abs(a - b) > 1e-6:\n    notify(run)", True),
        ("if not error <= bound:\n    raise ValueError", False),
        ("if len(names) > 3:\n    raise ValueError", False),
        ("if error > bound:\n    count += 1", False),
        ("worst = max(np.abs(a - b).max() for a, b in both)", True),
        ("worst = np.max([np.abs(a - b).max() for a, b in both])", False),
        ("most = max(number, 1)", False),
    ],
)
def test_the_walk_sees_what_it_is_for(code, passes):
    assert bool(list(found_in(code))) == passes
