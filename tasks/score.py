"""Score samples: fragments on workers of a pool, which hold rewards and no model; whole groups."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distributed import get_worker

from digen_core.config.model import ModelConfig
from digen_core.config.rewards import CalledConfig, forms_of, that_see
from digen_core.config.rewards.base import Sees
from digen_core.config.run import RunConfig
from digen_core.config.size import Size
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt
from digen_core.models.policy import resolve_device
from digen_core.preflight.reward_probe import NUM_SAMPLES, probe
from digen_core.rewards import reward_functions
from digen_core.rewards.asked import Asked
from digen_core.rewards.failures import FAILED
from digen_core.rewards.scoring import RewardError, RewardFn, score_images
from digen_core.transport.arrays import Arrays, to_array, to_arrays, to_tensor, to_tensors
from digen_core.transport.kept_inputs import keep_input
from tasks.body import body
from tasks.receipts import Nothing, ProbedRewards, Scored
from tasks.worker.engine import engine_of, working
from tasks.worker.nonfinite import input_of
from tasks.worker.span import span_on_receipt

logger = logging.getLogger(__name__)

MAX_NOTES = 4  # of failures that end no run, on a receipt


@dataclass(frozen=True, slots=True)
class Pool:
    """What the workers of a pool score with."""

    name: str
    rewards: Mapping[str, CalledConfig]
    device: str  # as in the config: each worker finds out its own

    @classmethod
    def all_of(cls, config: RunConfig) -> "list[Pool]":
        """Return those that the rewards of a config name."""
        device = config.model.device
        return [cls(name, config.rewards_of(name), device) for name in config.pools]

    @classmethod
    def that_see(cls, what: Sees, config: RunConfig) -> "list[Pool]":
        """Return those that have a reward that sees samples, or groups."""
        return [pool for pool in cls.all_of(config) if that_see(pool.rewards, what)]


_functions: dict[tuple[str, str], dict[str, RewardFn]] = {}  # by run and pool


@body("load rewards", Nothing)
def load_rewards(run_id: str, label: str, pool: Pool) -> tuple[None, Nothing]:
    """Load what a pool scores with.

    Raises:
        UserError: a reward cannot be made.
    """
    with span_on_receipt(str(get_worker().name)):
        _functions_of(run_id, pool)
    return None, Nothing()


@body("probe rewards", ProbedRewards)
def probe_rewards(
    run_id: str,
    label: str,
    *,
    model: ModelConfig,
    rewards: Mapping[str, CalledConfig],
    pool: Pool | None,
    prompts: Sequence[Prompt],
    latents: np.ndarray | None,
) -> tuple[None, ProbedRewards]:
    """Probe some of the rewards that this worker has loaded, and return warnings.

    Args:
        run_id: of the run.
        label: of the task.
        model: of the run: its device, and the size of its samples.
        rewards: to probe.
        pool: whose worker this is; None: it is a device that generates.
        prompts: of the run.
        latents: made up, for rewards that take these.

    Raises:
        UserError: a reward fails.
    """
    functions = engine_of(run_id).rewards if pool is None else _functions_of(run_id, pool)
    with span_on_receipt(str(get_worker().name)):
        notes = list[str]()
        chosen = {name: functions[name] for name in rewards}
        device = resolve_device(model.device)
        made_up = None if latents is None else to_tensor(latents, device)
        probe(chosen, rewards, model.size, prompts, device, notes.append, made_up)
    return None, ProbedRewards(notes)


@body("make up latents", Nothing)
def make_up_latents(run_id: str, label: str) -> tuple[np.ndarray, Nothing]:
    """Return noise in place of the latents of two samples, as rewards take them."""
    with working(run_id) as engine:
        shape = NUM_SAMPLES, *engine.policy.latent_shape
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return to_array(engine.policy.latents(noise)), Nothing()


@body("score", Scored)
def score(
    run_id: str,
    label: str,
    *,
    pool: Pool,
    samples: Arrays,
    size: Size,
    prompts: Sequence[Prompt],
    at: tuple[Fragment, Path] | None = None,
) -> tuple[None, Scored]:
    """Score samples of a size with the rewards of a pool; arguments as for `scores_of`."""
    with span_on_receipt(str(get_worker().name)):
        device, configs = resolve_device(pool.device), that_see(pool.rewards, "samples")
        seen, asked = to_tensors(samples, device), Asked.of(prompts, size, device)
        return None, scores_of(_functions_of(run_id, pool), configs, seen, asked, at)


@body("score group", Scored)
def score_group(
    run_id: str,
    label: str,
    *,
    pool: Pool | None,
    samples: Sequence[Arrays],
    size: Size,
    prompts: Sequence[Prompt],
    at: tuple[Fragment, Path],
) -> tuple[None, Scored]:
    """Score a group with the rewards that see one.

    Args:
        run_id: of the run.
        label: of the task.
        pool: whose rewards; None: those of the device, which generates.
        samples: of its fragments, in order.
        size: of the samples.
        prompts: of each sample: the same.
        at: as for `scores_of`.
    """
    engine = engine_of(run_id) if pool is None else None
    with span_on_receipt(str(get_worker().name) if engine is None else engine.device_name):
        if engine is not None:
            device, functions = engine.policy.device, engine.rewards
            rewards = engine.config.rewards_of(None)
        else:
            assert pool is not None
            device, functions = resolve_device(pool.device), _functions_of(run_id, pool)
            rewards = dict(pool.rewards)
        whole = {form: np.concatenate([own[form] for own in samples]) for form in samples[0]}
        seen, asked = to_tensors(whole, device), Asked.of(prompts, size, device)
        return None, scores_of(functions, that_see(rewards, "groups"), seen, asked, at)


def scores_of(
    functions: Mapping[str, RewardFn],
    configs: Mapping[str, CalledConfig],
    samples: Mapping[str, torch.Tensor],
    asked: Asked,
    at: tuple[Fragment, Path] | None = None,
) -> Scored:
    """Return what rewards say of samples, and what failed.

    The samples are kept if a failure ends the run or drops their group.

    Args:
        functions: of the rewards, by name.
        configs: of those of them that are called.
        samples: in the forms that rewards take: ``images`` [B, 3, H, W] or [B, F, 3, H, W], and
            ``latents`` [B, C, h, w] or [B, C, f, h, w].
        asked: of the model, for each of the B samples.
        at: whose samples they are, and the folder of the run; None: they are not kept.

    Raises:
        RewardError: a reward failed, and that ends the run.
    """
    notes = list[str]()
    seen: dict[str, torch.Tensor] = {form: samples[form] for form in forms_of(configs)}
    functions = {name: functions[name] for name in configs}

    def keep(names: Sequence[str], found: str) -> None:
        if at is not None:
            fragment, run_dir = at
            about, arrays = _asked(asked, seen)
            about["rewards"] = list(names)
            keep_input(run_dir, input_of("score", fragment, found, about, arrays))

    try:
        images, latents = seen.get("images"), seen.get("latents")
        columns = score_images(functions, configs, images, *asked, notes.append, latents)
    except RewardError as error:
        keep(list(functions), str(error))
        raise
    needed = [name for name in functions if configs[name].on_failure == "drop"]
    if lacking := [name for name in needed if columns[f"{name}/{FAILED}"].any()]:
        keep(lacking, f"reward {', '.join(map(repr, lacking))} gave no number")
    for note in notes:
        logger.warning(note)
    rewards = {name: values.tolist() for name, values in columns.items()}
    return Scored(rewards, notes[:MAX_NOTES])


def _asked(asked: Asked, seen: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], Arrays]:
    """Return what rewards were asked, as it is kept: `asked_of` takes it."""
    about: dict[str, Any] = {"prompts": list(asked.prompts), "metadata": list(asked.metadata)}
    arrays = to_arrays(seen)
    if asked.sources is not None:
        arrays["sources"] = to_array(asked.sources)
    if asked.more_sources is not None:
        arrays["more_sources"] = to_array(torch.cat(list(asked.more_sources)))
        about["num_more"] = [len(own) for own in asked.more_sources]
    return about, arrays


def asked_of(
    about: Mapping[str, Any], arrays: Mapping[str, np.ndarray], device: torch.device
) -> Asked:
    """Return what rewards were asked, from what was kept of it."""
    sources, more = (
        to_tensor(arrays[name], device) if name in arrays else None
        for name in ("sources", "more_sources")
    )
    others = None if more is None else more.split(about["num_more"])
    return Asked(about["prompts"], about["metadata"], sources, others)


def _functions_of(run_id: str, pool: Pool) -> dict[str, RewardFn]:
    """Return the rewards of a pool; a worker that was started again loads them anew."""
    if (run_id, pool.name) not in _functions:
        _functions.clear()  # one run at a time on a worker: the last one's memory is free again
        made = reward_functions(pool.rewards, resolve_device(pool.device))
        _functions[run_id, pool.name] = made
    return _functions[run_id, pool.name]
