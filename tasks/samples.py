"""The task in the place of denoising where samples come from files: encode those of a fragment."""

from collections.abc import Sequence
from pathlib import Path
from time import time

import numpy as np

from digen_core.control.protocol import Fragment
from digen_core.data.images import SourceImage
from digen_core.rollout.finished import is_asked, with_answers
from digen_core.rollout.given import given_step
from digen_core.rollout.sampler import DenoisedStep, nonfinite_text
from digen_core.rollout.steps import steps_to_keep
from digen_core.transport.arrays import Arrays, to_array, to_tensor, to_tensors
from digen_core.transport.segment import Segment
from digen_core.transport.trajectories import write_segment
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import Denoised
from tasks.rollout import DenoisedPart, joined, stored
from tasks.worker.engine import engine_of, working


@body("encode samples", Denoised)
def encode_samples(
    run_id: str,
    label: str,
    *,
    fragment: Fragment,
    steps: range,
    version: int,
    conditions: dict[str, Arrays],
    key: str,
    images: Sequence[SourceImage],
    run_dir: Path,
) -> tuple[Segment, Denoised]:
    """Encode the images that are a fragment's samples, in the place of all denoising steps.

    Its segment holds the last step, which changes nothing: latents before and after it are clean.
    What algorithms ask of finished samples is asked of the policy version.

    Raises:
        FloatingPointError: a latent, or what is asked of it, is NaN or infinite, and that ends
            the run.
    """
    with working(run_id, version=version) as engine:
        started, config = time(), engine.config
        policy = engine.policy_of(fragment.iteration, fragment.group)
        sigmas = to_array(policy.sigmas(config.rollout.num_steps))
        with engine.needing_memory("samples"):
            last = given_step(policy, images, config.rollout, fragment.samples)
        if is_asked(config):
            x, condition = to_array(last.x), conditions[key]
            parts = answers_part(run_id, version, fragment, condition, x, sigmas)
        else:
            parts = [stored([last], config.rollout.storage, 1)]
        latents = np.concatenate([part.latents for part in parts], axis=1)
        references = joined([part.references for part in parts])
        segment = Segment(
            fragment, last.step, latents, {}, version, sigmas, engine.device_name, references
        )
        if config.tracking.keep_trajectories:
            place = fragment.iteration, fragment.group
            kept_steps = steps_to_keep(config, *place, fragment.num_steps)
            write_segment(run_dir, segment, kept_steps)
        seconds = (time() - started) / len(steps)
    nonfinite = {sample: what for part in parts for sample, what in part.nonfinite.items()}
    nonfinite |= last.nonfinite
    if nonfinite and config.numerics.samples == "fail":
        raise FloatingPointError(nonfinite_text((fragment.iteration, fragment.group), nonfinite))
    values = joined([part.step_values for part in parts])
    margins = {level: own.tolist() for level, own in values.items()}
    num_parts = max(part.num_parts for part in parts)
    return segment, Denoised(version, {}, seconds, margins, num_parts, nonfinite)


@together
def answers_part(
    run_id: str,
    version: int,
    fragment: Fragment,
    condition: Arrays,
    clean: np.ndarray,
    sigmas: np.ndarray,
) -> list[DenoisedPart]:
    """Ask of a fragment's samples what training needs; each member of a gang takes a share of them.

    Args:
        run_id: of the run.
        version: that is asked.
        fragment: of whose samples.
        condition: embeddings of the prompt, one row.
        clean: latents [n, ...].
        sigmas: [T + 1] noise levels.

    Returns:
        All samples, in order, in parts that fitted into memory.
    """
    engine = engine_of(run_id)
    engine.activate(version)
    config, group = engine.config, (fragment.iteration, fragment.group)
    policy, gang = engine.policy_of(*group), engine.gang
    rows, levels = to_tensors(condition, policy.device), to_tensor(sigmas, policy.device)
    own = gang.computed(fragment.num_samples)

    def part_of(part: slice) -> list[DenoisedStep]:
        part = slice(own.start + part.start, own.start + part.stop)
        x = to_tensor(clean[part], policy.device)
        last = DenoisedStep(config.rollout.num_steps - 1, x, x, None)
        samples = fragment.samples[part]
        return [
            with_answers(last, policy, rows, levels, config=config, group=group, samples=samples)
        ]

    size = config.size_of(*group)
    made = engine.fitting.in_parts("denoise", size, own.stop - own.start, part_of)
    parts = [stored(part, config.rollout.storage, len(made)) for part in made]
    return gang.gather(parts if gang.counts(fragment.num_samples) else [])
