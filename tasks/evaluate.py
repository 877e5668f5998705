"""Evaluation task: sample prompts without noise on a rollout worker, and score the images."""

from contextlib import nullcontext
from functools import partial
from itertools import chain
from time import monotonic

import numpy as np
import torch

from digen_core.config.rewards import forms_of, that_see
from digen_core.config.rewards.base import Form
from digen_core.data.prompts import Prompt
from digen_core.rewards.asked import Asked, for_samples
from digen_core.rewards.scoring import check_finite
from digen_core.rollout.conditions import alike, encoded
from digen_core.rollout.evaluation import sample_latents, samples_of
from digen_core.training.train_state import PolicyVersion
from digen_core.transport.arrays import Arrays, to_arrays, to_tensors
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import Nothing, Scored
from tasks.score import scores_of
from tasks.worker.engine import Engine, engine_of, working
from tasks.worker.fetching import load_average
from tasks.worker.pulling import BUCKET_SECONDS, PullError

MOST_PULLS = 3  # of the weights that are judged
SHOWN_PER_PROMPT = 8
THUMBNAIL_PIXELS = 128  # what goes through the flow process stays small
SHOWN_VIDEOS, SHOWN_FRAMES = 4, 16  # of a prompt, of a video


@body("evaluate", Scored)
def sample_and_score(
    run_id: str,
    label: str,
    *,
    prompts: list[Prompt],
    indices: list[int],
    samples_per_prompt: int,
    policy_version: PolicyVersion,
    source: tuple[str, ...],
    by_delta: bool,
    shown: int,
    keep: frozenset[Form],
) -> tuple[Arrays, Scored]:
    """Sample some prompts, score the samples, and return what is needed of them after that.

    If no reward takes what is decoded, only what is shown is.

    Args:
        run_id: of the run.
        label: of the task run.
        prompts: P of them to sample.
        indices: of the prompts in the evaluation set.
        samples_per_prompt: S images of each.
        policy_version: to judge.
        source: addresses of the workers of the device that published it, by rank.
        by_delta: have deltas sent, of a version that both devices hold.
        shown: prompts, the first ones, whose samples are shown.
        keep: forms in which samples are returned, float32: ``images``, [P S, 3, H, W] or videos
            [P S, F, 3, H, W], or those of the shown prompts; ``latents``, [P S, C, h, w] or [P S,
            C, f, h, w].

    Raises:
        RewardError: a reward failed, or a sample has values that are not finite.
        PullError: that device is gone, or what it sent arrived damaged, and did so again.
    """
    with working(run_id) as engine:
        _load(run_id, policy_version, source, by_delta=by_delta)
        config, policy = engine.config, engine.policy
        own_rewards = that_see(config.rewards_of(None), "samples")
        forms = forms_of(that_see(config.rewards, "samples"))
        num_decoded = (len(prompts) if "images" in forms else shown) * samples_per_prompt
        size, named = config.model.size, samples_of(indices, samples_per_prompt)
        conditions = _encoded(engine, prompts)

        def sampled(part: slice) -> dict[str, torch.Tensor]:
            clean = _clean(run_id, conditions, named, range(part.start, part.stop))
            found = {"latents": policy.latents(clean)} if "latents" in forms else {}
            if (count := min(num_decoded - part.start, len(clean))) > 0:
                images = engine.fitting.in_parts(
                    "decode", size, count, lambda own: _aside(policy.decode(clean[own]), count)
                )
                found["images"] = _joined(images)
            return {form: _aside(made, len(named)) for form, made in found.items()}

        parts = engine.fitting.in_parts("evaluate", size, len(named), sampled)
        with engine.needing_memory("evaluate"):
            samples = {
                form: _joined([part[form] for part in parts if form in part]).to(policy.device)
                for form in parts[0]
            }
        check_finite(samples.get("images"), None)
        asked = for_samples(prompts, samples_per_prompt)
        about = Asked.of(asked, config.model.size, policy.device)
        scored = scores_of(engine.rewards, own_rewards, samples, about)
    return to_arrays({form: samples[form] for form in keep}), scored


def _aside(made: torch.Tensor, number: int) -> torch.Tensor:
    """Return samples on the host, as room for the next ones, unless they are so many: then all."""
    return made if len(made) == number else made.cpu()


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _encoded(engine: Engine, prompts: list[Prompt]) -> list[Arrays]:
    """Return what the model is given of each prompt, one row, on the host."""
    found = dict[int, Arrays]()
    size = engine.config.model.size

    def rows_of(places: list[int]) -> list[Arrays]:
        arrays = to_arrays(encoded(engine.policy, [prompts[place] for place in places]))
        rows = range(len(places))
        return [{name: value[row : row + 1] for name, value in arrays.items()} for row in rows]

    for like in alike(prompts):
        work = partial(lambda like, part: rows_of(like[part]), like)
        parts = engine.fitting.in_parts("encode", size, len(like), work)
        found |= zip(like, chain.from_iterable(parts), strict=True)
    return [found[place] for place in range(len(prompts))]


def _clean(
    run_id: str, conditions: list[Arrays], named: list[tuple[int, int]], rows: range
) -> torch.Tensor:
    """Return the clean latents of some samples, one for each row, on the device.

    Args:
        run_id: of the run.
        conditions: of P prompts.
        named: samples, equally many of each prompt, prompt by prompt.
        rows: places of those that are made.
    """
    size, made = len(named) // len(conditions), dict[int, torch.Tensor]()
    shapes = {row: _shape(conditions[row // size]) for row in rows}
    for shape in dict.fromkeys(shapes.values()):  # prompts with other numbers of images
        own = [row for row in rows if shapes[row] == shape]
        given = [conditions[row // size] for row in own]
        together = {name: np.concatenate([one[name] for one in given]) for name in given[0]}
        x = clean_latents(run_id, together, [named[row] for row in own])
        made |= zip(own, torch.cat(x), strict=True)
    return torch.stack([made[row] for row in rows]).to(engine_of(run_id).policy.device)


def _shape(condition: Arrays) -> tuple[tuple[int, ...], ...]:
    return tuple(value.shape for value in condition.values())


def _load(run_id: str, judged: PolicyVersion, source: tuple[str, ...], *, by_delta: bool) -> None:
    """Hold the weights that are judged; tried again where that fails soon, as a connection ends.

    A source that takes its time may be frozen, which the run finds by itself.

    Raises:
        PullError: it failed.
    """
    failure, began = "", monotonic()
    for _ in range(MOST_PULLS):
        failure = load_average(run_id, judged, source, by_delta=by_delta)
        if not failure:
            return
        if monotonic() - began >= BUCKET_SECONDS:
            break
    raise PullError(failure)


@together
def clean_latents(
    run_id: str, condition: Arrays, samples: list[tuple[int, int]]
) -> list[torch.Tensor]:
    """Return the clean latents of samples, in parts [n, ...]: each member of a gang makes some.

    Args:
        run_id: of the run.
        condition: embeddings of each sample's prompt, n rows.
        samples: as `digen_core.rollout.evaluation.sample_latents` takes them.

    Raises:
        UserError: they do not fit into memory, in a gang: alone it is asked for fewer.
    """
    engine = engine_of(run_id)
    policy, gang, num_samples = engine.policy, engine.gang, len(samples)
    own = gang.computed(num_samples)
    own_rows = {name: value[own] for name, value in condition.items()}
    num_steps, seed = engine.config.evaluation_steps, engine.config.seed
    assert engine.average is not None, "it was loaded before"
    fits = nullcontext() if gang.size == 1 else engine.needing_memory("evaluate")
    with fits, engine.temporary_weights(engine.average[1]):
        rows = to_tensors(own_rows, policy.device)
        x = sample_latents(policy, rows, samples[own], num_steps=num_steps, seed=seed).cpu()
    return gang.gather([x] if gang.counts(num_samples) else [])


@body("thumbnails", Nothing)
def thumbnails(
    run_id: str, label: str, samples: Arrays, samples_per_prompt: int, shown: int
) -> tuple[np.ndarray, Nothing]:
    """Return small images of the first ``shown`` prompts, as `_thumbnails` says."""
    with working(run_id):
        by_prompt = torch.tensor(samples["images"]).unflatten(0, (-1, samples_per_prompt))
        return _thumbnails(by_prompt, shown), Nothing()


def _thumbnails(images: torch.Tensor, shown: int) -> np.ndarray:
    """Return uint8 [shown, k, h, w, 3] of images [P, S, 3, H, W], at most 128 pixels a side.

    Of videos [P, S, F, 3, H, W] it is [shown, k, f, h, w, 3]: fewer of them, and of their frames.
    """
    is_video = images.ndim == 6
    few = images[:shown, : SHOWN_VIDEOS if is_video else SHOWN_PER_PROMPT]
    if is_video:
        frames = np.linspace(0, few.shape[2] - 1, min(SHOWN_FRAMES, few.shape[2])).round()
        few = few[:, :, torch.from_numpy(frames).long()]
    scale = min(1.0, THUMBNAIL_PIXELS / max(few.shape[-2:]))
    if scale < 1 and few.numel():
        flat = few.flatten(end_dim=-4)
        size = [max(1, int(side * scale)) for side in few.shape[-2:]]
        flat = torch.nn.functional.interpolate(flat, size=size, mode="area")
        few = flat.unflatten(0, few.shape[:-3])
    array: np.ndarray = (few * 255).round().byte().movedim(-3, -1).cpu().numpy()
    return array
