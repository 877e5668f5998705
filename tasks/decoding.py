"""The task that scores a fragment where it was generated, decoded or by its clean latents."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from digen_core.config.rewards import forms_of, that_see
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt
from digen_core.records import SHOWN_SAMPLES
from digen_core.rewards.asked import Asked
from digen_core.rewards.pixels import as_pixels
from digen_core.rollout.nonfinite import nonfinite_rows, with_zeros
from digen_core.rollout.sampler import nonfinite_text
from digen_core.transport.arrays import Arrays, to_arrays, to_tensor
from digen_core.transport.images import name_of, write_image
from digen_core.transport.segment import Segment, Segments
from tasks.body import body
from tasks.receipts import Scored
from tasks.score import scores_of
from tasks.views.pictures import thumbnail
from tasks.worker.engine import Engine, working
from tasks.worker.nonfinite import input_of, keep_or_fail
from tasks.worker.profiling import profiled

SHOWN_GROUPS: Final = 4
"""An iteration's page shows the first samples of so many groups."""


@body("decode and score", Scored)
def decode_and_score(
    run_id: str,
    label: str,
    *,
    prompt: Prompt,
    fragment: Fragment,
    segments: Segments,
    run_dir: Path,
) -> tuple[Arrays, Scored]:
    """Reward the samples of a fragment, decoded or by their clean latents, as the rewards take.

    Where no reward takes what is decoded, only the samples that are shown are decoded.

    Returns:
        The samples in the forms in which others score them, too, as `score` takes them; and what
        the rewards said of them.

    Raises:
        FloatingPointError: a pixel is NaN or infinite, and that ends the run.
        RewardError: a reward failed, and that ends the run.
    """
    segment = next(own for own in segments if own.fragment == fragment)
    with (
        working(run_id) as engine,
        profiled(engine, "decode", fragment.iteration, run_dir),
    ):
        config, size = engine.config, engine.config.size_of(fragment.iteration, fragment.group)
        policy, forms = engine.policy_at(size), forms_of(engine.config.rewards)
        images, nonfinite = _decoded(engine, segment, run_dir)
        samples = {} if images is None else {"images": images}
        if "latents" in forms:
            samples["latents"] = policy.latents(to_tensor(segment.x, policy.device))
        own = that_see(config.rewards_of(None), "samples")
        asked = Asked.of([prompt] * fragment.num_samples, size, policy.device)
        scored = scores_of(engine.rewards, own, samples, asked, (fragment, run_dir))
        is_shown = _is_shown(fragment, config.rollout.first_group)
        shown = [] if images is None or not is_shown else _pictures(images)
        is_kept = config.tracking.keep_images != "none"
        if images is not None and is_kept and not config.rollout.screens(fragment.group):
            _keep_images(engine, fragment, images, run_dir)
    judged = nonfinite if "images" in forms else {}
    facts = replace(scored, pictures=shown, nonfinite=judged)
    return to_arrays({form: samples[form] for form in config.scored_elsewhere}), facts


def _decoded(
    engine: Engine, segment: Segment, run_dir: Path
) -> tuple[Tensor | None, dict[int, str]]:
    """Return images [n, 3, H, W] or videos of the samples whose trajectories a segment ends.

    They are all of them, or the first that are shown; None: none is decoded. Those with pixels that
    are NaN or infinite are black, and returned by their index in the group.
    """
    fragment, x = segment.fragment, segment.x
    place = fragment.iteration, fragment.group
    if not engine.config.is_decoded:
        is_shown = _is_shown(fragment, engine.config.rollout.first_group)
        x = x[: SHOWN_SAMPLES if is_shown else 0]
    if not len(x):
        return None, {}
    policy = engine.policy_of(*place)

    def decoded(part: slice) -> Tensor:
        images = policy.decode(to_tensor(x[part], policy.device))
        return images if len(images) == len(x) else images.cpu()  # room for the next part

    parts = engine.fitting.in_parts("decode", engine.config.size_of(*place), len(x), decoded)
    with engine.needing_memory("decode"):
        images = parts[0] if len(parts) == 1 else torch.cat(parts).to(policy.device)
    bad = nonfinite_rows({"pixels": images})
    nonfinite = {fragment.samples[row]: what for row, what in bad.items()}
    if not nonfinite:
        return images, {}
    found = nonfinite_text(place, nonfinite)
    kept = input_of("decode", fragment, found, {}, {"x": segment.x})
    keep_or_fail(run_dir, kept, engine.config.numerics.samples)
    return with_zeros(images, bad), nonfinite


def _is_shown(fragment: Fragment, first_group: int) -> bool:
    return 0 <= fragment.group - first_group < SHOWN_GROUPS and fragment.index == 0


def _pictures(images: Tensor) -> list[bytes]:
    """Return the first samples, [B, 3, H, W] or of videos [B, F, 3, H, W] the middle frame."""
    if images.ndim == 5:
        images = images[:, images.shape[1] // 2]
    return [thumbnail(image) for image in as_pixels(images[:SHOWN_SAMPLES])]


def _keep_images(engine: Engine, fragment: Fragment, images: torch.Tensor, run_dir: Path) -> None:
    place, suffix = (fragment.iteration, fragment.group), engine.config.tracking.image_format
    for sample, pixels in zip(fragment.samples, as_pixels(images), strict=True):
        write_image(run_dir / name_of(*place, sample, suffix), pixels)
