"""Do again, in this process, what was NaN or infinite in a run, from the inputs that it kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.config.rewards import called
from digen_core.config.run import RunConfig
from digen_core.config.size import Size
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.reference.replay import checkpoint_of, prompts_of_run
from digen_core.rewards import reward_functions
from digen_core.rewards.scoring import RewardError, score_images
from digen_core.rollout.nonfinite import nonfinite_rows, watched
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import nonfinite_text
from digen_core.training.pairs import from_kept
from digen_core.transport.arrays import from_stored, to_tensor, to_tensors
from digen_core.transport.kept_inputs import InputKind, KeptInput
from digen_core.transport.origin import Origin
from tasks.denoising import denoise_part, joined
from tasks.rollout import encode
from tasks.score import asked_of
from tasks.setup import load_engine
from tasks.versions import first_state, publish, push_weights
from tasks.worker.engine import Engine, VersionError
from tasks.worker.gradients import part_gradient, with_start

RUN: Final = "reproduction"  # id of the engine


@dataclass(frozen=True, slots=True)
class Reproduced:
    """What came of an input now."""

    kept: KeptInput
    found: str  # what is NaN or infinite; empty: nothing
    module: str  # inside the model, whose output was the first to be so; empty: none of a forward


def reproduce(
    run_dir: Path, config: RunConfig, inputs: Sequence[KeptInput]
) -> Iterator[Reproduced]:
    """Do the work of some inputs again, in the order of the versions that did it.

    Args:
        run_dir: folder of the run.
        config: of the run, perhaps on another device or in another dtype.
        inputs: to work on.

    Raises:
        UserError: the model cannot be loaded, or a version is not kept.
        VersionError: a version cannot be loaded.
    """
    silent = config.model_copy(update={"rewards": {}})  # one that is to be asked is made there
    engine = load_engine(RUN, silent, RUN, ("rollout", "trainer"))
    for kept in sorted(inputs, key=lambda one: (one.version, one.name)):
        if kept.version not in (-1, engine.version):
            _load(run_dir, engine, kept.version)
        with _watching(engine, kept) as modules:
            found = _WORK[kept.kind](engine, run_dir, config, kept)
        yield Reproduced(kept, found, modules[0] if modules else "")


def _load(run_dir: Path, engine: Engine, version: int) -> None:
    checkpoint, _ = checkpoint_of(run_dir, version)
    state = first_state(RUN) if checkpoint is None else read_checkpoint(checkpoint)
    pushed, _ = publish(RUN, "publish", state)
    _, loaded = push_weights(RUN, "push", pushed)
    if loaded.failure:
        raise VersionError(f"version {version} could not be loaded: {loaded.failure}")
    engine.activate(version)


def _watching(engine: Engine, kept: KeptInput) -> AbstractContextManager[list[str]]:
    if kept.kind == "score":
        return nullcontext([])
    policy = engine.policy
    if kept.kind == "decode":
        assert isinstance(policy, PipelinePolicy)
        return watched(policy.pipeline.vae)
    return watched(policy.transformer)


def _arrays(engine: Engine, kept: KeptInput) -> dict[str, np.ndarray]:
    """Return the arrays in the precision of the model's latents."""
    wide = np.float64 if engine.policy.latent_dtype == torch.float64 else np.float32
    arrays = {name: from_stored(array) for name, array in kept.arrays.items()}
    return {n: a.astype(wide) if a.dtype.kind == "f" else a for n, a in arrays.items()}


def _denoise(engine: Engine, run_dir: Path, config: RunConfig, kept: KeptInput) -> str:
    about, arrays = kept.about, _arrays(engine, kept)
    fragment, key = Fragment(**about["fragment"]), about["condition"]
    size = config.size_of(fragment.iteration, fragment.group)
    prompt = _prompt_of(run_dir, config, key, size)
    conditions, _ = encode(RUN, "encode", [prompt])
    place = fragment.iteration, fragment.group
    parts = denoise_part(
        RUN,
        kept.version,
        Rows.of(place, fragment.samples, Origin.from_kept(about["origin"])),
        range(about["step"], about["end_step"]),
        tuple(about["noisy_steps"]),
        {place: conditions[key]},
        arrays["x"],
        arrays["sigmas"],
        arrays.get("clean"),
    )
    found = joined(parts).nonfinite
    return _text(kept, {fragment.samples[row]: what for row, what in found.items()})


def _prompt_of(run_dir: Path, config: RunConfig, key: str, size: Size) -> SizedPrompt:
    """Return the prompt of a condition; what it came with is where the run has its prompts."""
    if config.prompts.are_texts:
        return SizedPrompt(Prompt(key), size)
    every = prompts_of_run(run_dir, config)
    given = (replace(prompt, is_emptied=empty) for empty in (False, True) for prompt in every)
    found = (SizedPrompt(prompt, size) for prompt in given)
    return next(prompt for prompt in found if prompt.key == key)


def _decode(engine: Engine, run_dir: Path, config: RunConfig, kept: KeptInput) -> str:
    policy = engine.policy_of(kept.iteration, kept.group)
    images = policy.decode(to_tensor(_arrays(engine, kept)["x"], policy.device))
    samples = Fragment(**kept.about["fragment"]).samples
    bad = nonfinite_rows({"pixels": images})
    return _text(kept, {samples[row]: what for row, what in bad.items()})


def _text(kept: KeptInput, found: Mapping[int, str]) -> str:
    return nonfinite_text((kept.iteration, kept.group), found) if found else ""


def _score(engine: Engine, run_dir: Path, config: RunConfig, kept: KeptInput) -> str:
    about, device = kept.about, engine.policy.device
    rewards = called(config.rewards)
    strict = {
        name: rewards[name].model_copy(update={"on_failure": "fail"}) for name in about["rewards"]
    }
    seen, asked = to_tensors(kept.arrays, device), asked_of(about, kept.arrays, device)
    functions = reward_functions(strict, device)
    try:
        score_images(functions, strict, seen.get("images"), *asked, latents=seen.get("latents"))
    except RewardError as error:
        return str(error)
    return ""


def _train(engine: Engine, run_dir: Path, config: RunConfig, kept: KeptInput) -> str:
    pairs = from_kept(kept.about, _arrays(engine, kept), torch.device("cpu"))
    pairs = with_start(engine, kept.iteration, kept.group, pairs, kept.version)
    return part_gradient(engine, kept.iteration, kept.group, pairs).metrics.nonfinite


_WORK: Final[Mapping[InputKind, Callable[[Engine, Path, RunConfig, KeptInput], str]]] = {
    "denoise": _denoise,
    "decode": _decode,
    "score": _score,
    "train": _train,
}
