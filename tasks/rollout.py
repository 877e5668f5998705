"""Rollout tasks: encode prompts, denoise some steps of a batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import SizedPrompt
from digen_core.rollout.conditions import encoded, shape_of
from digen_core.rollout.rows import GroupRows, Rows
from digen_core.rollout.sampler import nonfinite_text, schedule_of
from digen_core.rollout.sampling import Sampling
from digen_core.rollout.steps import steps_of_group, steps_to_keep
from digen_core.transport.arrays import Arrays, to_array, to_arrays
from digen_core.transport.segment import Segment, Segments
from digen_core.transport.trajectories import write_segment
from tasks.body import body
from tasks.denoising import DenoisedPart, denoise_part, joined, rows_of
from tasks.receipts import Denoised, Nothing, Sampled
from tasks.worker.engine import Engine, working
from tasks.worker.nonfinite import input_of, keep_or_fail
from tasks.worker.profiling import profiled


@body("encode", Nothing)
def encode(
    run_id: str, label: str, prompts: list[SizedPrompt]
) -> tuple[dict[str, Arrays], Nothing]:
    """Embed the prompts of some groups, each by itself: one row that all its fragments share.

    Returns:
        The condition of each, by its key.
    """
    with working(run_id) as engine, engine.needing_memory("encode"), engine.policy.encoding():
        found = {
            own.key: to_arrays(encoded(engine.policy_at(own.size), [own.prompt])) for own in prompts
        }
    return found, Nothing()


@body("denoise", Denoised)
def denoise_steps(
    run_id: str,
    label: str,
    *,
    batch: list[Sampling],
    steps: range,
    version: int,
    conditions: list[dict[str, Arrays]],
    previous: list[Segments],
    run_dir: Path,
) -> tuple[Segments, Denoised]:
    """Run denoising steps of a batch with one policy version, after those of ``previous``.

    What training needs of them is kept in the run's folder, if the config asks for it. Candidates
    are generated as the config's screening says.

    Raises:
        FloatingPointError: a sample became NaN or infinite, and that ends the run.
    """
    with (
        working(run_id, version=version) as engine,
        profiled(engine, "denoise", batch[0].fragment.iteration, run_dir),
    ):
        started = time()
        by_key = {key: own for part in conditions for key, own in part.items()}
        of_groups = {sampling.group: by_key[sampling.key] for sampling in batch}
        last = {own.fragment: own for part in previous for own in part}
        found: dict[Fragment, tuple[Segment, DenoisedPart]] = {}
        apart = _alike(engine.config, batch, of_groups)
        for alike in apart:
            before = [last[own.fragment] for own in alike] if previous else []
            found |= _denoised(run_id, engine, alike, steps, version, of_groups, before)
        seconds = (time() - started) / len(steps)
        segments = tuple(found[own.fragment][0] for own in batch)
        for segment in segments if engine.config.tracking.keep_trajectories else ():
            _keep(engine.config, segment, run_dir)
    sampled = []
    for sampling in batch:
        segment, part = found[sampling.fragment]
        samples = sampling.fragment.samples
        nonfinite = {samples[row]: what for row, what in part.nonfinite.items()}
        if nonfinite:
            held = last.get(sampling.fragment)
            _keep_or_fail(engine, sampling, steps, segment, part, nonfinite, held, run_dir)
        logprobs, values = (
            {step: own.tolist() for step, own in by_step.items()}
            for by_step in (part.logprobs, part.step_values)
        )
        sampled.append(Sampled(logprobs, values, nonfinite))
    num_parts = max(part.num_parts for _, part in found.values())
    return segments, Denoised(version, seconds, sampled, num_parts, len(apart))


def _alike(
    config: RunConfig, batch: Sequence[Sampling], conditions: Mapping[tuple[int, int], Arrays]
) -> list[list[Sampling]]:
    """Split a batch into what is computed together: samples and conditions of one shape.

    So pairs of a sample are replayed by the kernels that made it, whatever was beside it (see
    `tasks.train`); and all rows have noise at the same steps.
    """
    found: dict[object, list[Sampling]] = {}
    for own in batch:
        trained: tuple[int, ...] = ()
        if not config.rollout.screens(own.group[1]):  # of candidates no step is trained
            trained = steps_of_group(config, *own.group, own.fragment.num_steps).trained
        shape = config.size_of(*own.group), shape_of(conditions[own.group])
        found.setdefault((shape, own.noisy_steps, trained), []).append(own)
    return list(found.values())


def _denoised(
    run_id: str,
    engine: Engine,
    alike: Sequence[Sampling],
    steps: range,
    version: int,
    conditions: Mapping[tuple[int, int], Arrays],
    previous: Sequence[Segment],
) -> dict[Fragment, tuple[Segment, DenoisedPart]]:
    """Return what denoising fragments that are alike makes of each."""
    sigmas = previous[0].sigmas if previous else _schedule(engine, alike[0])
    rows = Rows(tuple(GroupRows.of(own.group, own.fragment.samples, own.origin) for own in alike))
    x, clean = None, None
    if previous:
        x = np.concatenate([segment.x for segment in previous])
        predicted = [segment.clean for segment in previous if segment.clean is not None]
        clean = np.concatenate(predicted) if predicted else None
    of_groups = {own.group: conditions[own.group] for own in alike}
    parts = denoise_part(
        run_id, version, rows, steps, alike[0].noisy_steps, of_groups, x, sigmas, clean
    )
    whole, first = joined(parts), 0
    found = {}
    for own in alike:
        part = rows_of(whole, slice(first, first + own.fragment.num_samples))
        first += own.fragment.num_samples
        goes_on = steps.stop < len(sigmas) - 1
        segment = Segment(
            own.fragment,
            steps.start,
            part.latents,
            part.logprobs,
            version,
            sigmas,
            engine.device_name,
            part.references,
            part.clean if goes_on else None,
            own.origin,
        )
        found[own.fragment] = segment, part
    return found


def _schedule(engine: Engine, sampling: Sampling) -> np.ndarray:
    """Return the noise levels [T + 1] of a trajectory: who begins it takes them, once."""
    policy, config = engine.policy_of(*sampling.group), engine.config
    screening, num_steps = config.rollout.screening, sampling.fragment.num_steps
    if screening is not None and screening.num_steps and config.rollout.screens(sampling.group[1]):
        return to_array(policy.sigmas(num_steps))
    return to_array(schedule_of(policy, config, sampling.group[0], num_steps))


def _keep(config: RunConfig, segment: Segment, run_dir: Path) -> None:
    """Keep what training needs of a segment; of candidates that is nothing."""
    fragment = segment.fragment
    if not config.rollout.screens(fragment.group):
        place = fragment.iteration, fragment.group
        write_segment(run_dir, segment, steps_to_keep(config, *place, fragment.num_steps))


def _keep_or_fail(
    engine: Engine,
    sampling: Sampling,
    steps: range,
    segment: Segment,
    part: DenoisedPart,
    nonfinite: Mapping[int, str],
    previous: Segment | None,
    run_dir: Path,
) -> None:
    """Keep the input of a fragment that is NaN or infinite; FloatingPointError: that ends the run.

    It is done again by itself: what is beside a sample changes nothing of it.
    """
    step = min(part.nonfinite_steps.values())
    # A step of second order goes on from the one before: then the task is done again as it was.
    first = step if part.clean is None else steps.start
    about: dict[str, object] = {"step": first, "end_step": step + 1}
    about["noisy_steps"] = list(sampling.noisy_steps)
    origin = sampling.origin
    about |= {"condition": sampling.key, "origin": None if origin is None else origin.to_kept()}
    arrays = {"x": segment.before(first), "sigmas": segment.sigmas}
    if previous is not None and previous.clean is not None:
        arrays["clean"] = previous.clean
    found = nonfinite_text(sampling.group, nonfinite)
    kept = input_of("denoise", sampling.fragment, found, about, arrays, segment.version)
    keep_or_fail(run_dir, kept, engine.config.numerics.samples)
