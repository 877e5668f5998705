"""The task in the place of denoising where samples come from files: encode those of a fragment."""

from collections.abc import Sequence
from pathlib import Path
from time import time

from digen_core.control.protocol import Fragment
from digen_core.data.images import SourceImage
from digen_core.rollout.finished import is_asked
from digen_core.rollout.given import given_step
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import nonfinite_text
from digen_core.rollout.steps import steps_to_keep
from digen_core.transport.arrays import Arrays, to_array
from digen_core.transport.segment import Segment
from digen_core.transport.trajectories import write_segment
from tasks.body import body
from tasks.denoising import answers_part, joined, stored
from tasks.receipts import Denoised, Sampled
from tasks.worker.engine import working


@body("encode samples", Denoised)
def encode_samples(
    run_id: str,
    label: str,
    *,
    fragment: Fragment,
    steps: range,
    version: int,
    conditions: list[dict[str, Arrays]],
    key: str,
    images: Sequence[SourceImage],
    run_dir: Path,
) -> tuple[tuple[Segment], Denoised]:
    """Encode the images that are a fragment's samples, in the place of all denoising steps.

    Its segment holds the last step, which changes nothing: latents before and after it are clean.
    What algorithms ask of finished samples is asked of the policy version.

    Raises:
        FloatingPointError: a latent, or what is asked of it, is NaN or infinite, and that ends
            the run.
    """
    with working(run_id, version=version) as engine:
        started, config = time(), engine.config
        place = fragment.iteration, fragment.group
        policy = engine.policy_of(*place)
        sigmas = to_array(policy.sigmas(config.rollout.num_steps))
        with engine.needing_memory("samples"):
            last = given_step(policy, images, config.rollout)
        if is_asked(config):
            rows, x = Rows.of(place, fragment.samples), to_array(last.x)
            condition = next(own[key] for own in conditions if key in own)
            made = joined(answers_part(run_id, version, rows, {place: condition}, x, sigmas))
        else:
            made = stored([last], config.rollout.storage, 1)
        segment = Segment(
            fragment,
            last.step,
            made.latents,
            {},
            version,
            sigmas,
            engine.device_name,
            made.references,
        )
        if config.tracking.keep_trajectories:
            kept_steps = steps_to_keep(config, *place, fragment.num_steps)
            write_segment(run_dir, segment, kept_steps)
        seconds = (time() - started) / len(steps)
    found = {**made.nonfinite, **last.nonfinite}
    nonfinite = {fragment.samples[row]: what for row, what in found.items()}
    if nonfinite and config.numerics.samples == "fail":
        raise FloatingPointError(nonfinite_text(place, nonfinite))
    margins = {level: own.tolist() for level, own in made.step_values.items()}
    sampled = [Sampled({}, margins, nonfinite)]
    return (segment,), Denoised(version, seconds, sampled, made.num_parts)
