"""Denoising on a device: in parts that fit into memory, dealt over the members of a gang."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from digen_core.config.rollout import RolloutConfig
from digen_core.models.policy import Condition, Policy
from digen_core.rollout.finished import is_asked, with_answers
from digen_core.rollout.references import ReferenceUse
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import DenoisedStep, denoise, initial_latent
from digen_core.transport.arrays import (
    Arrays,
    Precision,
    to_array,
    to_stored,
    to_tensor,
    to_tensors,
)
from tasks.gang.together import together
from tasks.worker.engine import Engine, engine_of


@dataclass(frozen=True, slots=True)
class DenoisedPart:
    """Some of a batch's samples, as segments hold them."""

    latents: np.ndarray  # [steps + 1, n, ...] in the precision of storage
    logprobs: dict[int, np.ndarray]  # noisy step -> [n]
    step_values: dict[int, np.ndarray]  # trained step -> [n], where something is asked of them
    references: dict[int, np.ndarray]  # trained step -> [n, ...], where training is to have them
    num_parts: int  # in which its member denoised its samples
    nonfinite: dict[int, str]  # rows that became NaN or infinite, and what of them
    nonfinite_steps: dict[int, int]  # the first step at which each of them did
    clean: np.ndarray | None = None  # [n, ...] predicted before the last step, for some solvers


@together
def denoise_part(
    run_id: str,
    version: int,
    rows: Rows,
    steps: range,
    noisy_steps: tuple[int, ...],
    conditions: Mapping[tuple[int, int], Arrays],
    before: np.ndarray | None,
    sigmas: np.ndarray,
    clean: np.ndarray | None = None,
) -> list[DenoisedPart]:
    """Denoise some steps of samples that are alike, of which each member of a gang takes a share.

    Args:
        run_id: of the run.
        version: that generates.
        rows: the samples, all of one size, or all of them candidates of one.
        steps: to run.
        noisy_steps: steps with noise.
        conditions: embeddings of the prompt of each of their groups, one row, of one shape.
        before: latents [n, ...] before the first step; None: it is the trajectory's first.
        sigmas: [T + 1] noise levels.
        clean: [n, ...] that the step before the first predicted, where the solver asks for it.

    Returns:
        All samples, in order, in parts that fitted into memory.
    """
    engine = engine_of(run_id)
    engine.activate(version)
    config, group = engine.config, rows.parts[0].group
    policy, levels = engine.policy_of(*group), to_tensor(sigmas, engine.policy.device)
    is_candidate = config.rollout.screens(group[1])
    rollout = config.rollout.of_candidates if is_candidate else config.rollout
    asks_nothing = is_candidate or config.trains_clean
    asks_of_ends = is_asked(config) and not is_candidate and steps.stop == len(sigmas) - 1

    def steps_of(own: Rows, part: slice, condition: Condition) -> list[DenoisedStep]:
        if before is None:
            x = _starts(policy, config.seed, own, rollout)
        else:
            x = to_tensor(before[part], policy.device)
        use = None if asks_nothing else ReferenceUse.of(config, own, len(sigmas) - 1)
        with engine.old_policy():
            done = list(
                denoise(
                    policy,
                    x,
                    condition,
                    levels,
                    steps=steps,
                    noisy_steps=noisy_steps,
                    config=rollout,
                    seed=config.seed,
                    rows=own,
                    clean=None if clean is None else to_tensor(clean[part], policy.device),
                    reference=use,
                    zeroed=True,
                )
            )
        if asks_of_ends:
            done[-1] = with_answers(done[-1], policy, condition, levels, config=config, rows=own)
        return done

    return _in_parts(engine, rows, conditions, steps_of)


def _in_parts(
    engine: Engine,
    rows: Rows,
    conditions: Mapping[tuple[int, int], Arrays],
    work: Callable[[Rows, slice, Condition], list[DenoisedStep]],
) -> list[DenoisedPart]:
    """Do something with this member's share of samples, as many at once as fit (collective).

    Args:
        engine: of the device.
        rows: the samples.
        conditions: of each of their groups.
        work: does it with some of them: which they are, where among all, and their conditions.
    """
    config, gang, group = engine.config, engine.gang, rows.parts[0].group
    device = engine.policy.device
    of_groups = {place: to_tensors(own, device) for place, own in conditions.items()}
    share = gang.computed(len(rows))

    def part_of(part: slice) -> list[DenoisedStep]:
        part = slice(share.start + part.start, share.start + part.stop)
        own = rows.part(part)
        return work(own, part, own.conditions(of_groups))

    size, number = config.size_of(*group), share.stop - share.start
    made = engine.fitting.in_parts("denoise", size, number, part_of)
    parts = [stored(part, config.rollout.storage, len(made)) for part in made]
    return gang.gather(parts if gang.counts(len(rows)) else [])


def _starts(policy: Policy, seed: int, rows: Rows, config: RolloutConfig) -> Tensor:
    """Return the noise [n, ...] that samples start from."""
    starts = [
        initial_latent(
            policy,
            seed=seed,
            group=part.origin.group,
            samples=part.origin.samples,
            config=config,
        )
        for part in rows.parts
    ]
    return torch.cat(starts)


@together
def answers_part(
    run_id: str,
    version: int,
    rows: Rows,
    conditions: Mapping[tuple[int, int], Arrays],
    clean: np.ndarray,
    sigmas: np.ndarray,
) -> list[DenoisedPart]:
    """Ask of clean samples what training needs; each member of a gang takes a share of them.

    Args:
        run_id: of the run.
        version: that is asked.
        rows: the samples, all of one size.
        conditions: embeddings of the prompt of each of their groups, one row.
        clean: latents [n, ...].
        sigmas: [T + 1] noise levels.

    Returns:
        All samples, in order, in parts that fitted into memory.
    """
    engine = engine_of(run_id)
    engine.activate(version)
    config, policy = engine.config, engine.policy_of(*rows.parts[0].group)
    levels = to_tensor(sigmas, policy.device)

    def steps_of(own: Rows, part: slice, condition: Condition) -> list[DenoisedStep]:
        x = to_tensor(clean[part], policy.device)
        last = DenoisedStep(config.rollout.num_steps - 1, x, x, None)
        return [with_answers(last, policy, condition, levels, config=config, rows=own)]

    return _in_parts(engine, rows, conditions, steps_of)


def stored(done: list[DenoisedStep], precision: Precision, num_parts: int) -> DenoisedPart:
    """Return consecutive steps of some samples as segments hold them.

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
        {row: what for step in reversed(done) for row, what in step.nonfinite.items()},
        {row: step.step for step in reversed(done) for row in step.nonfinite},
        None if done[-1].clean is None else to_array(done[-1].clean),
    )


def joined(parts: list[DenoisedPart]) -> DenoisedPart:
    """Return parts as one; a gang's members may have had them in unequally many."""
    nonfinite, steps, first = dict[int, str](), dict[int, int](), 0
    for part in parts:
        nonfinite |= {first + row: what for row, what in part.nonfinite.items()}
        steps |= {first + row: step for row, step in part.nonfinite_steps.items()}
        first += part.latents.shape[1]
    clean = [part.clean for part in parts if part.clean is not None]
    return DenoisedPart(
        np.concatenate([part.latents for part in parts], axis=1),
        _by_step([part.logprobs for part in parts]),
        _by_step([part.step_values for part in parts]),
        _by_step([part.references for part in parts]),
        max(part.num_parts for part in parts),
        nonfinite,
        steps,
        np.concatenate(clean) if clean else None,
    )


def _by_step(parts: list[dict[int, np.ndarray]]) -> dict[int, np.ndarray]:
    return {step: np.concatenate([part[step] for part in parts]) for step in parts[0]}


def rows_of(part: DenoisedPart, rows: slice) -> DenoisedPart:
    """Return consecutive rows of a part, as arrays of their own unless these are all."""
    if rows == slice(0, part.latents.shape[1]):
        return part

    def cut(by_step: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        return {step: values[rows].copy() for step, values in by_step.items()}

    first, inside = rows.start, range(rows.start, rows.stop)
    return DenoisedPart(
        part.latents[:, rows].copy(),
        cut(part.logprobs),
        cut(part.step_values),
        cut(part.references),
        part.num_parts,
        {row - first: what for row, what in part.nonfinite.items() if row in inside},
        {row - first: step for row, step in part.nonfinite_steps.items() if row in inside},
        None if part.clean is None else part.clean[rows].copy(),
    )
