"""Call reward functions, try again, check what they return, and put it in columns.

A reward function maps (images, prompts) to a tensor [B], or to a dict of tensors [B] whose key
``score`` is the reward and whose other keys are components to look at. Images are [B, 3, H, W] in
[0, 1], videos [B, F, 3, H, W]; in their place there may be what they are decoded from, latents
[B, C, h, w] or [B, C, f, h, w]. Which of them a reward takes is in its config (``takes``). One that
has a parameter ``metadata`` also gets what the rows of the prompts say, [B] dicts by column,
and one that has a parameter ``sources`` the images that the prompts come with, [B, 3, H, W], in the
samples' size.

One that sees groups (``sees`` in its config) is called with all samples of one group at once; its
B prompts are the same.
"""

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tenacity import RetryCallState, Retrying
from torch import Tensor

from digen_core.config.rewards import CalledConfig
from digen_core.config.rewards.base import VideoReward
from digen_core.config.rewards.own import FunctionConfig
from digen_core.data.prompts import Metadata
from digen_core.errors import UserError
from digen_core.inputs.reading import shown
from digen_core.inputs.text import number_of
from digen_core.rewards.asked import Asked
from digen_core.rewards.attempts import (
    PartialError,
    PermanentError,
    TransientError,
    after_attempts,
    attempts_of,
)
from digen_core.rewards.failures import FAILED
from digen_core.rewards.sums import with_reward

logger = logging.getLogger(__name__)

RewardFn = Callable[..., Tensor | Mapping[str, Tensor]]
Array = NDArray[np.float64]

MOST: Final = 1e15
"""How far from 0 a number may be: float64 keeps tenths beside it; sums of squares stay finite."""
COMPONENT: Final = re.compile(r"(?=.{1,100}$)\w[\w.: -]*(/\w[\w.: -]*)*")
"""Names of components: they become metrics, whose names MLflow takes so, and columns."""

_CONSEQUENCES: Final = {"neutral": "it is neutral for", "drop": "it drops the groups of"}


class RewardError(RuntimeError):
    """A reward function failed or returned something unusable; the message names it."""


def score_images(
    functions: Mapping[str, RewardFn],
    configs: Mapping[str, CalledConfig],
    images: Tensor | None,
    prompts: Sequence[str],
    metadata: Sequence[Metadata] = (),
    sources: Tensor | None = None,
    more_sources: Sequence[Tensor] | None = None,
    note: Callable[[str], None] = logger.warning,
    latents: Tensor | None = None,
) -> dict[str, Array]:
    """Score samples with every reward.

    Args:
        functions: of the rewards, by name.
        configs: of the same rewards: weights, what they take, what their failure means.
        images: [B, 3, H, W] or videos [B, F, 3, H, W], in [0, 1]; None: no reward takes any.
        prompts: B texts.
        metadata: what else the rows of the B prompts say; () if they are texts only.
        sources: images [B, 3, H, W] in [0, 1] that the prompts come with, if they do: the first of
            each.
        more_sources: the others of each of the B prompts, [n, 3, H, W], if one has several.
        note: is called with each failure that does not end the run.
        latents: as `Policy.latents` gives them, [B, C, h, w] or [B, C, f, h, w]; None: likewise.

    Returns:
        float64 arrays [B]: ``reward``, the weighted sum, and ``<name>/<component>`` of each reward.
        One whose failure is neutral, or drops the group, has ``<name>/score`` and
        ``<name>/failed`` only, the latter 1 for samples without a score; these have the score 0
        until `failures.settle` fills it in.

    Raises:
        RewardError: a function raised, or returned NaN, Inf, a number further from 0 than `MOST`,
            the wrong number of values, or names that no metric has, and that ends the run; or a
            sample has values that are not finite.
        UserError: a reward takes videos, but these are images.
    """
    check_finite(images, latents)
    seen = _Seen(images, latents)
    columns: dict[str, Array] = {}
    asked = Asked(prompts, metadata or [{}] * len(prompts), sources, more_sources)
    for name, function in functions.items():
        found = _score(name, function, configs[name], seen, asked, note)
        for component, values in found.items():
            columns[f"{name}/{component}"] = values
    weights = {name: configs[name].weight for name in functions}
    return with_reward(columns, weights, len(prompts))


class _Seen(NamedTuple):
    """Samples, as they were decoded and as they were before that."""

    images: Tensor | None
    latents: Tensor | None


def check_finite(images: Tensor | None, latents: Tensor | None) -> None:
    """Check samples, as they were decoded and as they were before that.

    Raises:
        RewardError: they have values that are not finite.
    """
    if latents is not None and not torch.isfinite(latents).all():
        raise RewardError(
            "the latents have NaN or Inf in them, which no reward can judge; use another "
            "model.dtype"
        )
    if images is not None and not torch.isfinite(images).all():
        raise RewardError(
            "the decoded samples have NaN or Inf in them, which no reward can judge; check the "
            "latents, or use another model.dtype"
        )


def _score(
    name: str,
    function: RewardFn,
    config: CalledConfig,
    samples: _Seen,
    asked: Asked,
    note: Callable[[str], None],
) -> dict[str, Array]:
    """Return what one reward finds, and what its config makes of a failure."""
    seen, num_frames = _what_it_takes(name, config, samples)
    failure = None
    try:
        found = _components(name, function, config, seen, asked.repeated(num_frames))
        if config.on_failure == "fail":
            for component, values in found.items():
                _check_numbers(_label(name, component), values)
    except RewardError as error:
        if config.on_failure == "fail":
            raise
        failure, count = error, num_frames * len(asked.prompts)
        found = {"score": _scores_of(error.__cause__, count)}
    means = {key: values.reshape(-1, num_frames).mean(axis=1) for key, values in found.items()}
    if config.on_failure == "fail":
        return means
    failed = ~_is_score(means["score"])
    if failure is not None:
        follows = f"{_CONSEQUENCES[config.on_failure]} {number_of(int(failed.sum()), 'sample')}"
        note(f"{failure}; {follows if failed.any() else 'all samples have a score without it'}")
    score = np.where(failed, 0.0, means["score"])
    return {"score": score, FAILED: failed.astype(np.float64)}


def _scores_of(error: BaseException | None, count: int) -> Array:
    """Return the scores that there are in spite of an error, [count], NaN for the others."""
    if isinstance(error, PartialError):
        return _as_array("it", error.scores, count)
    return np.full(count, np.nan)


def _what_it_takes(name: str, config: CalledConfig, samples: _Seen) -> tuple[Tensor, int]:
    """Return what a reward is called with: images, videos or latents; and how many of a sample."""
    images, latents = samples
    if config.takes == "latents":
        assert latents is not None, "who has samples scored by them gives them"
        return latents, 1
    assert images is not None, "who has samples scored by them gives them"
    if isinstance(config, VideoReward) or config.takes == "videos":
        if images.ndim != 5:
            raise UserError(
                f"the reward {name!r} takes videos [B, F, 3, H, W], but the samples have the shape "
                f"{list(images.shape)}; use it with a video model and several frames"
            )
        return images, 1
    if images.ndim != 5:
        return images, 1
    frames = images[:, :: config.frame_stride]
    return frames.flatten(0, 1), frames.shape[1]


def _components(
    name: str, function: RewardFn, config: CalledConfig, images: Tensor, asked: Asked
) -> dict[str, Array]:
    """Return the components of one reward; their values may be NaN or Inf."""

    def note(state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        pause = state.next_action.sleep if state.next_action else 0.0
        if error:
            why = _reason(error)
            logger.warning("reward %r %s; it is called again in %.1f s", name, why, pause)

    attempts = Retrying(**attempts_of(config, note))
    try:
        with torch.no_grad():
            result = attempts(_called, function, config, images, asked)
    except (Exception, SystemExit) as error:
        after = after_attempts(attempts.statistics["attempt_number"], config)
        raise RewardError(f"reward {name!r} {_reason(error)}{after}") from error
    components = result if isinstance(result, Mapping) else {"score": result}
    if "score" not in components:
        raise RewardError(f"reward {name!r} returned {sorted(components)} without 'score'")
    for key in components:
        if not isinstance(key, str) or COMPONENT.fullmatch(key) is None:
            raise RewardError(
                f"reward {name!r} returned {shown(key, 80)} beside its score, which is no name of "
                "a metric; use letters, digits, blanks and _ . : -, 100 at most"
            )
        if key.rpartition("/")[2] == FAILED:
            raise RewardError(f"reward {name!r} returned {key!r}, a name that is taken; rename it")
    return {
        key: _as_array(_label(name, key), values, len(asked.prompts))
        for key, values in components.items()
    }


def _called(function: RewardFn, config: CalledConfig, images: Tensor, asked: Asked) -> object:
    """Call a reward once; one of the user's with copies, which it may change in place."""
    if isinstance(config, FunctionConfig):
        images, asked = images.clone(), asked.copied()
    return function(images, asked.prompts, **_extras(function, asked))


def _extras(function: RewardFn, asked: Asked) -> dict[str, Any]:
    """Return what a reward is given beside images and prompts, as its parameters ask.

    A torch module's are those of its ``forward``; what is not written in Python is given no more.
    """
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        taken = inspect.signature(called).parameters
    except ValueError:
        return {}
    names = ("metadata", "sources", "more_sources")
    return {name: getattr(asked, name) for name in names if name in taken}


def _reason(error: BaseException) -> str:
    """Say what a function raised; digen's own words stand without the name of their class."""
    if isinstance(error, PermanentError | TransientError):
        return f"failed: {error}"
    return f"raised {type(error).__name__}: {error}"


def _label(name: str, component: str) -> str:
    return f"reward {name!r}" + ("" if component == "score" else f" ({component})")


def _as_array(label: str, values: object, count: int) -> Array:
    """Return the values as float64 [count], or say what is wrong with them."""
    try:
        found = torch.as_tensor(_for_torch(values)).detach().cpu()
        array: Array = (found if found.is_complex() else found.to(torch.float64)).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        what = type(values).__name__
        if isinstance(values, list | tuple | np.ndarray | str):
            what = f"the {what} {' '.join(shown(values, 100).split())}"
        raise RewardError(f"{label} returned {what}, not numbers") from error
    if found.is_complex():
        raise RewardError(f"{label} returned complex numbers; return their real parts or sizes")
    if array.shape != (count,):
        raise RewardError(f"{label} returned shape {array.shape} for {number_of(count, 'image')}")
    return array


def _for_torch(values: object) -> object:
    """Return numbers as torch takes them: no columns of pandas, and of numpy's kinds its own."""
    if isinstance(values, Tensor) or not hasattr(values, "__array__"):
        return values
    array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind in "biuf" else array.copy()


def _check_numbers(label: str, array: Array) -> None:
    (bad,) = np.nonzero(~_is_score(array))
    if len(bad):
        value = array[bad[0]]
        why = f", more than {MOST:g} from 0" if np.isfinite(value) else ""
        raise RewardError(f"{label} returned {value} for image {bad[0]} of {len(array)}{why}")


def _is_score(values: Array) -> NDArray[np.bool_]:
    """Return which numbers a score may be, [B]."""
    return np.abs(values) <= MOST
