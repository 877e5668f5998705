"""Rollout tasks: encode a prompt, denoise some steps of a fragment."""

from dataclasses import asdict, dataclass
from pathlib import Path
from time import time

import numpy as np

from digen_core.control.protocol import Fragment
from digen_core.data.prompts import SizedPrompt
from digen_core.rollout.conditions import encoded
from digen_core.rollout.finished import is_asked, with_answers
from digen_core.rollout.origin import Origin
from digen_core.rollout.references import ReferenceUse
from digen_core.rollout.sampler import (
    DenoisedStep,
    denoise,
    initial_latent,
    nonfinite_text,
    schedule_of,
)
from digen_core.rollout.steps import steps_to_keep
from digen_core.transport.arrays import (
    Arrays,
    Precision,
    to_array,
    to_arrays,
    to_stored,
    to_tensor,
    to_tensors,
)
from digen_core.transport.segment import Segment
from digen_core.transport.trajectories import write_segment
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import Denoised, Nothing
from tasks.worker.engine import Engine, engine_of, working
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
    fragment: Fragment,
    steps: range,
    noisy_steps: tuple[int, ...],
    version: int,
    conditions: dict[str, Arrays],
    key: str,
    previous: Segment | None,
    run_dir: Path,
    origin: Origin | None = None,
) -> tuple[Segment, Denoised]:
    """Run denoising steps of a fragment with one policy version, after ``previous``'s.

    What training needs of them is kept in the run's folder, if the config asks for it. Candidates
    are generated as the config's screening says.

    Raises:
        FloatingPointError: a sample became NaN or infinite, and that ends the run.
    """
    with (
        working(run_id, version=version) as engine,
        profiled(engine, "denoise", fragment.iteration, run_dir),
    ):
        started = time()
        sigmas = _schedule(engine, fragment, previous)
        parts = denoise_part(
            run_id,
            version,
            fragment,
            origin,
            steps,
            noisy_steps,
            conditions[key],
            None if previous is None else previous.x,
            sigmas,
            None if previous is None else previous.clean,
        )
        segment = Segment(
            fragment,
            steps.start,
            np.concatenate([part.latents for part in parts], axis=1),
            joined([part.logprobs for part in parts]),
            version,
            sigmas,
            engine.device_name,
            joined([part.references for part in parts]),
            _predicted(parts, is_last=steps.stop == len(sigmas) - 1),
        )
        seconds = (time() - started) / len(steps)
        is_candidate = engine.config.rollout.screens(fragment.group)
        if engine.config.tracking.keep_trajectories and not is_candidate:
            place = fragment.iteration, fragment.group
            kept_steps = steps_to_keep(engine.config, *place, fragment.num_steps)
            write_segment(run_dir, segment, kept_steps)
    logprobs = {step: values.tolist() for step, values in segment.logprobs.items()}
    asked = joined([part.step_values for part in parts])
    step_values = {step: values.tolist() for step, values in asked.items()}
    nonfinite = {sample: what for part in parts for sample, what in part.nonfinite.items()}
    if nonfinite:
        step = min(part.nonfinite_step for part in parts if part.nonfinite_step is not None)
        # A step of second order goes on from the one before: then the task is done again as it was.
        first = step if parts[0].clean is None else steps.start
        about: dict[str, object] = {"step": first, "end_step": step + 1}
        about["noisy_steps"] = list(noisy_steps)
        about |= {"condition": key, "origin": None if origin is None else asdict(origin)}
        arrays = {"x": segment.before(first), "sigmas": sigmas}
        if previous is not None and previous.clean is not None:
            arrays["clean"] = previous.clean
        found = nonfinite_text((fragment.iteration, fragment.group), nonfinite)
        kept = input_of("denoise", fragment, found, about, arrays, version)
        keep_or_fail(run_dir, kept, engine.config.numerics.samples)
    num_parts = max(part.num_parts for part in parts)
    return segment, Denoised(version, logprobs, seconds, step_values, num_parts, nonfinite)


def _schedule(engine: Engine, fragment: Fragment, previous: Segment | None) -> np.ndarray:
    """Return the noise levels [T + 1] of a trajectory: who begins it takes them, once."""
    if previous is not None:
        return previous.sigmas
    policy, config = engine.policy_of(fragment.iteration, fragment.group), engine.config
    screening = config.rollout.screening
    if screening is not None and screening.num_steps and config.rollout.screens(fragment.group):
        return to_array(policy.sigmas(fragment.num_steps))
    return to_array(schedule_of(policy, config, fragment.iteration, fragment.num_steps))


@dataclass(frozen=True, slots=True)
class DenoisedPart:
    """Some of a fragment's samples, as a segment holds them."""

    latents: np.ndarray  # [steps + 1, n, ...] in the precision of storage
    logprobs: dict[int, np.ndarray]  # noisy step -> [n]
    step_values: dict[int, np.ndarray]  # trained step -> [n], where something is asked of them
    references: dict[int, np.ndarray]  # trained step -> [n, ...], where training is to have them
    num_parts: int  # in which its member denoised its samples
    nonfinite: dict[int, str]  # samples that became NaN or infinite, and what of them
    nonfinite_step: int | None  # the first at which one did
    clean: np.ndarray | None = None  # [n, ...] predicted before the last step, for some solvers


@together
def denoise_part(
    run_id: str,
    version: int,
    fragment: Fragment,
    origin: Origin | None,
    steps: range,
    noisy_steps: tuple[int, ...],
    condition: Arrays,
    before: np.ndarray | None,
    sigmas: np.ndarray,
    clean: np.ndarray | None = None,
) -> list[DenoisedPart]:
    """Denoise some steps of a fragment, of which each member of a gang takes a share.

    Args:
        run_id: of the run.
        version: that generates.
        fragment: of whose samples.
        origin: whose noise its samples have; None: their own.
        steps: to run.
        noisy_steps: steps with noise.
        condition: embeddings of the prompt, one row.
        before: latents [n, ...] before the first step; None: it is the trajectory's first.
        sigmas: [T + 1] noise levels.
        clean: [n, ...] that the step before the first predicted, where the solver asks for it.

    Returns:
        All samples, in order, in parts that fitted into memory.
    """
    engine = engine_of(run_id)
    engine.activate(version)
    config, group = engine.config, (fragment.iteration, fragment.group)
    policy = engine.policy_of(*group)
    rows, levels = to_tensors(condition, policy.device), to_tensor(sigmas, policy.device)
    is_candidate = config.rollout.screens(fragment.group)
    rollout = config.rollout.of_candidates if is_candidate else config.rollout
    asks_nothing = is_candidate or config.trains_clean
    num_samples, gang = fragment.num_samples, engine.gang
    own = gang.computed(num_samples)

    def part_of(part: slice) -> list[DenoisedStep]:
        part = slice(own.start + part.start, own.start + part.stop)
        samples = fragment.samples[part]
        noise = Origin(group, samples) if origin is None else origin.part(part)
        if before is None:
            x = initial_latent(
                policy, seed=config.seed, group=noise.group, samples=noise.samples, config=rollout
            )
        else:
            x = to_tensor(before[part], policy.device)
        with engine.old_policy():
            done = list(
                denoise(
                    policy,
                    x,
                    rows,
                    levels,
                    steps=steps,
                    noisy_steps=noisy_steps,
                    config=rollout,
                    seed=config.seed,
                    group=group,
                    samples=samples,
                    origin=noise,
                    clean=None if clean is None else to_tensor(clean[part], policy.device),
                    reference=None
                    if asks_nothing
                    else ReferenceUse.of(config, group, samples, len(sigmas) - 1),
                    zeroed=True,
                )
            )
        if is_asked(config) and not is_candidate and steps.stop == len(sigmas) - 1:
            done[-1] = with_answers(
                done[-1], policy, rows, levels, config=config, group=group, samples=samples
            )
        return done

    size, num_own = config.size_of(*group), own.stop - own.start
    made = engine.fitting.in_parts("denoise", size, num_own, part_of)
    parts = [stored(part, config.rollout.storage, len(made)) for part in made]
    return gang.gather(parts if gang.counts(num_samples) else [])


def stored(done: list[DenoisedStep], precision: Precision, num_parts: int) -> DenoisedPart:
    """Return consecutive steps of some samples as a segment holds them.

    Args:
        done: the steps.
        precision: that latents are kept in.
        num_parts: in which its member made its samples.
    """
    latents = [done[0].x, *(step.x_next for step in done)]
    return DenoisedPart(
        np.stack([to_stored(x, precision) for x in latents]),
        {step.step: to_array(step.logprob) for step in done if step.logprob is not None},
        {step.step: to_array(step.kl) for step in done if step.kl is not None}
        | {level: to_array(value) for level, value in done[-1].margins.items()},
        {level: to_array(value) for step in done for level, value in step.references.items()},
        num_parts,
        {sample: what for step in reversed(done) for sample, what in step.nonfinite.items()},
        next((step.step for step in done if step.nonfinite), None),
        None if done[-1].clean is None else to_array(done[-1].clean),
    )


def _predicted(parts: list[DenoisedPart], *, is_last: bool) -> np.ndarray | None:
    """Return what a next step goes on from besides the latents, [n, ...]; None: nothing."""
    found = [part.clean for part in parts if part.clean is not None and not is_last]
    return np.concatenate(found) if found else None


def joined(parts: list[dict[int, np.ndarray]]) -> dict[int, np.ndarray]:
    """Return, by step, the values of all samples."""
    return {step: np.concatenate([part[step] for part in parts]) for step in parts[0]}
