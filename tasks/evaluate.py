"""Evaluation task: sample prompts without noise on a rollout worker, and score the images."""

import numpy as np
import torch

from digen_core.data.prompts import Prompt
from digen_core.rewards.scoring import Asked
from digen_core.rollout.evaluation import sample_images
from digen_core.training.optimizer import PolicyVersion
from digen_core.transport.arrays import to_array
from tasks.body import body
from tasks.receipts import Nothing, Scored
from tasks.score import scores_of
from tasks.worker.engine import working

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
    keep: bool,
) -> tuple[np.ndarray | None, Scored]:
    """Sample some prompts, score the images, and return them if they are needed after that.

    Args:
        run_id: of the run.
        label: of the task run.
        prompts: P of them to sample.
        indices: of the prompts in the evaluation set.
        samples_per_prompt: S images of each.
        policy_version: to judge.
        keep: Return float32 [P S, 3, H, W], or videos [P S, F, 3, H, W].
    """
    with working(run_id) as engine:
        config = engine.config
        with engine.temporary_weights(policy_version.weights):
            parts = engine.fitting.in_parts(
                "evaluate",
                config.model.size,
                len(prompts),
                lambda part: sample_images(
                    engine.policy,
                    [prompt.text for prompt in prompts[part]],
                    indices[part],
                    num_samples=samples_per_prompt,
                    num_steps=config.evaluation_steps,
                    seed=config.seed,
                ),
            )
        with engine.needing_memory("evaluate"):
            images = torch.cat(parts)
        asked = Asked.of(prompts, samples_per_prompt)
        scored = scores_of(engine.rewards, config.rewards, images, *asked)
    return to_array(images) if keep else None, scored


@body("thumbnails", Nothing)
def thumbnails(
    run_id: str, label: str, images: np.ndarray, samples_per_prompt: int, shown: int
) -> tuple[np.ndarray, Nothing]:
    """Return small images of the first ``shown`` prompts, as `_thumbnails` says."""
    with working(run_id):
        by_prompt = torch.tensor(images).unflatten(0, (-1, samples_per_prompt))
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
        flat = torch.nn.functional.interpolate(flat, scale_factor=scale, mode="area")
        few = flat.unflatten(0, few.shape[:-3])
    array: np.ndarray = (few * 255).round().byte().movedim(-3, -1).cpu().numpy()
    return array
