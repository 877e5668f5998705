"""What members of a gang compute in tests, beside what one device computes of the same."""

from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from digen_core.checkpoints.export import save_transformer
from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import gathered_weights, own_rows, whole_weights
from digen_core.gang.stages import PORTIONS_PER_STAGE, Stage
from digen_core.maths.flow_sde import LOGPROBS
from digen_core.models.experts import changed
from digen_core.models.loading import load_trainable
from digen_core.models.policy import TRAINER_PARTS, Condition
from digen_core.models.trainable import initial_weights, set_weights, trainable_parameters
from digen_core.models.versions import versions_of
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from digen_core.training.gradient import PackMetrics, transition_of
from digen_core.training.gradient_sum import GradientSum, UpdateGradient, pack_gradient
from digen_core.training.pairs import Pairs, rows_of
from support.families import EDITED, OF_KIND, family_of, frames_of
from tasks.worker.engine import Engine

TARGETS = {"flux2": {"targets": ["to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj"]}}
"""Layers for a LoRA where the default ones are not in all blocks: a stage needs one at least."""


@dataclass(frozen=True)
class Case:
    """What is computed, and how a gang shares it."""

    model: str  # one of the tests' tiny ones
    lora: bool = True
    tokens: int = 1  # degree in which they are dealt
    shard: bool = False
    checkpointing: bool = False
    dtype: str = "float64"
    num_rows: int = 5
    compile: bool = False
    stages: int = 1
    in_portions: bool = True  # which flow through the stages
    stage_blocks: tuple[int, ...] = ()
    cuts: tuple[dict[str, Any], ...] = ()  # that are coded
    edits: int = 0  # of so many source images
    precision: str = "model"  # of rollouts
    packs: int = 1  # whose gradients are added up; each is the same
    device: str = "cpu"
    attention: str = "native"

    @property
    def family(self) -> str:
        return family_of(self.model)

    def config(self, folder: str) -> RunConfig:
        lora = {"rank": 4, "alpha": 8.0, **TARGETS.get(self.family, {})} if self.lora else None
        return RunConfig.model_validate(
            {
                "model": {
                    "family": self.family,
                    "path": folder,
                    "dtype": self.dtype,
                    "device": self.device,
                    "attention": self.attention,
                    "compile": self.compile,
                    "cuts": self.cuts,
                    "height": 32,
                    "width": 32,
                    "num_frames": frames_of(self.family),
                    # texts of Z-Image are padded to a multiple of 32: here to one, and to two
                    "max_sequence_length": 64 if self.family == "z_image" else 16,
                    "guidance_scale": 3.0,
                    **OF_KIND.get(self.model, {}),
                    "max_source_images": max(self.edits, 1),
                },
                "prompts": EDITED if self.edits else {},
                "train": {"lora": lora, "gradient_checkpointing": self.checkpointing},
                "algorithm": {
                    "clip_range": 0.03,
                    "kl_coefficient": 0.1,
                    "correction": "none" if self.precision == "model" else "recompute",
                },
                "rollout": {
                    "precision": self.precision,
                    "prompts_per_iteration": 2,
                    "group_size": 4,
                    "num_steps": 4,
                    "fragment_size": 4,
                },
                "parallel": {
                    "context_parallel": self.tokens,
                    "shard_weights": self.shard,
                    "stages": self.stages,
                    "stage_blocks": self.stage_blocks,
                },
            }
        )


def trained_policy(config: RunConfig, gang: Gang = ALONE) -> Any:
    """Load a policy with weights that some training might have made."""
    policy = load_trainable(config, TRAINER_PARTS, gang)
    moved, own = _moved(_initial(policy, config, gang), 5), trainable_parameters(policy)
    set_weights(policy, {name: value for name, value in moved.items() if name in own})
    return policy


def _initial(policy: Any, config: RunConfig, gang: Gang) -> dict[str, Any]:
    """Return the whole initial weights."""
    return whole_weights(initial_weights(policy, config.train.lora, seed=0, gang=gang), gang)


def _moved(weights: dict[str, Any], seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (value + 0.02 * _noise(value.shape, generator).numpy()).astype(value.dtype)
        for name, value in weights.items()
    }


def _noise(shape: Any, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _condition(policy: Any, count: int, generator: torch.Generator) -> Condition:
    """Embeddings of texts of several lengths: at most 11 of 16 tokens."""
    condition = {}
    for name, value in policy.blank_condition(count).items():
        if name.endswith("mask"):
            condition[name] = torch.ones_like(value)
            condition[name][:, 11 * value.shape[1] // 16 :] = 0
            condition[name][1:, 7 * value.shape[1] // 16 :] = 0
        else:
            condition[name] = _noise(value.shape, generator).to(value)
    return condition


def pairs_of(policy: Any, config: RunConfig, count: int) -> Pairs:
    """Pairs of several steps; the trained version sampled the first, another one the others."""
    generator, dtype = torch.Generator().manual_seed(1), policy.latent_dtype
    shape = count, *policy.latent_shape
    x, step, advantage, moved = (
        _noise(size, generator).to(dtype) for size in (shape, shape, (count,), (count,))
    )
    sigmas, steps = policy.sigmas(config.rollout.num_steps), torch.arange(count) % 2 + 1
    is_own = torch.arange(count) == 0
    pairs = Pairs(
        x=x,
        x_next=x + 0.1 * step,
        behaviour_logprob=torch.zeros(count, dtype=dtype),
        advantage=advantage,
        sigma=sigmas[steps],
        sigma_next=sigmas[steps + 1],
        sigma_max=float(sigmas[1]),
        condition=_condition(policy, count, generator),
        is_own=is_own,
        is_stale=~is_own,
        sampled_by=tuple(f"rollout-{row % 2}" for row in range(count)),
    )
    there, host = (torch.device(own) for own in (policy.device, "cpu"))
    pairs = rows_of(pairs, slice(None), there)
    with torch.no_grad():
        logprob = LOGPROBS[config.rollout.transition](
            pairs.x_next, transition_of(policy, pairs, config)
        )
    logprob = logprob.cpu() + torch.where(is_own, 0, 0.05 * moved)
    return replace(rows_of(pairs, slice(None), host), behaviour_logprob=logprob)


def _from_leader(value: Any) -> Any:
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


@dataclass(frozen=True)
class Gradients:
    """How far a gang's gradient is from one device's, relative to the largest number in it."""

    error: float
    same_names: bool
    metrics: PackMetrics
    expected: PackMetrics


def gradients(folders: dict[str, str], cases: list[Case]) -> list[Gradients | None]:
    """Compare the gradient of a case's packs, on the leader."""
    found = []
    for case in cases:
        portions = (
            Stage._portions if case.in_portions else lambda self, num_rows: [slice(0, num_rows)]
        )
        with patch.object(Stage, "_portions", portions):
            found.append(_gradients(case, case.config(folders[case.model])))
    return found


def _gradients(case: Case, config: RunConfig) -> Gradients | None:
    gang = Gang.of(config.parallel)
    pairs, expected = None, None
    if gang.is_leader:
        one = trained_policy(config)
        pairs = pairs_of(one, config, case.num_rows)
        expected = _sum(one, pairs, case, config, ALONE)
    pairs = _from_leader(pairs)
    own = UpdateGradient.of(_sum(trained_policy(config, gang), pairs, case, config, gang), gang)
    rows = {name: value.cpu().numpy() for name, value in own.gradient.items()}
    whole = gathered_weights(rows, gang)
    if expected is None:
        assert whole == {}
        return None
    gradient = {name: torch.from_numpy(value) for name, value in whole.items()}
    found = UpdateGradient(gradient, own.metrics, own.packs)
    assert found.packs == expected.packs
    scale = np.max([float(value.abs().max()) for value in expected.gradient.values()])
    errors = [
        float((found.gradient[name] - value.cpu()).abs().max())
        for name, value in expected.gradient.items()
    ]
    return Gradients(
        float(np.max(errors) / scale),
        found.gradient.keys() == expected.gradient.keys(),
        found.metrics,
        expected.metrics,
    )


def _sum(policy: Any, pairs: Pairs, case: Case, config: RunConfig, gang: Gang) -> GradientSum:
    """Return a member's sum over the case's packs."""
    total = GradientSum()
    for index in range(case.packs):
        total.add(index, [pack_gradient(policy, pairs, config, gang)])
    return total


def replay_errors_of_own_samples(folders: dict[str, str], case: Case) -> dict[str, float]:
    """Return by how much log-probs differ from those of the gang's own samples, by device."""
    config = case.config(folders[case.model])
    gang = Gang.of(config.parallel)
    policy = trained_policy(config, gang)
    pairs = pairs_of(policy, config, case.num_rows)  # collective: log-probs are the policy's
    return dict(pack_gradient(policy, pairs, config, gang).metrics.replay_errors)


def replay_failures(folders: dict[str, str], case: Case) -> tuple[str, list[int]]:
    """Return what a gradient of pairs that were sampled otherwise fails with, and on whom.

    The first pair alone was sampled by the trained version, which one member has.
    """
    config = case.config(folders[case.model])
    gang = Gang.of(config.parallel)
    pairs = None
    if gang.is_leader:
        pairs = pairs_of(trained_policy(config), config, case.num_rows)
        pairs = replace(pairs, behaviour_logprob=pairs.behaviour_logprob + 1.0)
    pairs = _from_leader(pairs)
    try:
        pack_gradient(trained_policy(config, gang), pairs, config, gang)
    except FloatingPointError as error:
        return str(error), gang.everyone(gang.rank)  # which takes all of them
    return "", []


def seconds_of_blocks(config: RunConfig, count: int, seconds: float) -> tuple[float, float]:
    """Return how long a pack's portions take, one after the other, and how long the pack takes.

    Each stage has one block, that takes ``seconds`` for each portion, there and back.
    """
    gang = Gang.of(config.parallel)
    policy = trained_policy(config, gang)
    pairs = pairs_of(policy, config, count)  # collective: its log-probs are the policy's
    pack_gradient(policy, pairs, config, gang)
    transformer, row = policy.transformer, FAMILIES[config.model.family]
    (block,) = (block for name in row.blocks for block in getattr(transformer, name))
    block.register_forward_pre_hook(lambda *_: sleep(seconds))
    block.register_full_backward_pre_hook(lambda *_: sleep(seconds))
    dist.barrier()
    started = monotonic()
    pack_gradient(policy, pairs, config, gang)
    waited = monotonic() - started
    num_passes = 3  # of the reference, there, and back
    return num_passes * seconds * PORTIONS_PER_STAGE * gang.stages**2, waited


@dataclass(frozen=True)
class Samples:
    """What a member sampled: its share, and for each of its samples a row."""

    share: int
    latents: Tensor
    logprobs: Tensor
    expected: tuple[Tensor, Tensor] | None  # of one device, all samples: on the leader


def samples(folders: dict[str, str], cases: list[Case]) -> list[Samples]:
    """Denoise samples of one group as a gang does."""
    return [_samples(case, case.config(folders[case.model])) for case in cases]


def _samples(case: Case, config: RunConfig) -> Samples:
    gang = Gang.of(config.parallel)
    expected = None
    if gang.is_leader:
        expected = _denoised(trained_policy(config), config, range(case.num_rows))
    own = gang.computed(case.num_rows)
    latents, logprobs = _denoised(trained_policy(config, gang), config, range(own.start, own.stop))
    counted = len(range(case.num_rows)[gang.own(case.num_rows)])
    return Samples(gang.share, latents[:counted], logprobs[:, :counted], expected)


def _denoised(policy: Any, config: RunConfig, rows: range) -> tuple[Tensor, Tensor]:
    """Return the last latents of samples and the log-probs [steps, samples] of the steps."""
    own = Rows.of((0, 0), rows)
    condition = own.conditions({(0, 0): _condition(policy, 1, torch.Generator().manual_seed(2))})
    x = initial_latent(policy, seed=3, group=(0, 0), samples=rows)
    done = list(
        denoise(
            policy,
            x,
            condition,
            policy.sigmas(4),
            steps=range(4),
            noisy_steps=(1, 2),
            config=config.rollout,
            seed=3,
            rows=own,
        )
    )
    logprobs = [step.logprob for step in done if step.logprob is not None]
    return done[-1].x_next.cpu(), torch.stack(logprobs).cpu()


@dataclass(frozen=True)
class Versions:
    """How far a gang's velocities are from one device's, with versions that it holds in turn."""

    errors: list[float]
    same_initial: bool


def versions(folders: dict[str, str], cases: list[Case]) -> list[Versions]:
    """Compare the velocities of versions 1, 0, 1 and of temporary weights with one device's."""
    return [_versions(case.config(folders[case.model])) for case in cases]


def _versions(config: RunConfig) -> Versions:
    gang = Gang.of(config.parallel)
    one, shared = (load_trainable(config, TRAINER_PARTS, which) for which in (ALONE, gang))
    initial, found = (_initial(p, config, own) for p, own in ((one, ALONE), (shared, gang)))
    weights = [_moved(initial, version) for version in range(3)]
    stores = [versions_of(policy) for policy in (one, shared)]
    engine = Engine(config, "gang", shared, {}, stores[1], gang)  # which is pushed a member's rows
    rows = [engine.held(_rows(version, gang)) for version in weights]
    for store, kept in zip(stores, (weights, rows), strict=True):
        store.hold(0, kept[0])
        store.hold(1, kept[1])
    errors = []
    for version in (1, 0, 1):
        for store in stores:
            store.activate(version)
        errors.append(_difference(one, shared))
    with stores[0].temporary(weights[2]), stores[1].temporary(rows[2]):
        errors.append(_difference(one, shared))
    errors.append(_difference(one, shared))
    same = all(np.array_equal(value, found[name]) for name, value in initial.items())
    return Versions(errors, same and initial.keys() == found.keys())


def _rows(weights: dict[str, Any], gang: Gang) -> dict[str, Any]:
    """Return a member's rows of whole weights."""
    return {name: own_rows(value, gang) for name, value in weights.items()}


def _difference(one: Any, shared: Any) -> float:
    """Return the largest difference of two policies' velocities."""
    generator = torch.Generator().manual_seed(4)
    x = _noise((2, *one.latent_shape), generator).to(one.device, one.latent_dtype)
    condition = _condition(one, 2, generator)
    levels = torch.tensor([0.9, 0.4], device=one.device)
    with torch.no_grad():
        left, right = (
            policy.velocity(x, levels, policy.without_padding(condition))
            for policy in (one, shared)
        )
    return float((left - right).abs().max())


def exported(folders: dict[str, str], cases: list[Case], folder: Path) -> list[bool]:
    """Say of each case whether what the leader exports alone is what it was given."""
    return [_exported(case.config(folders[case.model]), folder / case.model) for case in cases]


def _exported(config: RunConfig, folder: Path) -> bool:
    gang = Gang.of(config.parallel)
    policy = load_trainable(config, TRAINER_PARTS, gang)
    weights = _moved(_initial(policy, config, gang), 3)
    if not gang.is_leader:
        return True
    whole = load_trainable(config, TRAINER_PARTS).transformer
    folder.mkdir(parents=True)
    dtypes = versions_of(policy).dtypes
    source = Path(config.model.path) / "transformer" if policy.idle else None
    save_transformer(policy.transformer, folder, weights, dtypes=dtypes, source=source)
    read = changed(
        whole,
        lambda own: own.from_pretrained(
            next((folder / n for n, each in whole.named_children() if each is own), folder),
            dtype=torch.float64,
        ),
    ).state_dict()
    return read.keys() == whole.state_dict().keys() and all(
        np.array_equal(own := read[name].numpy(), value.astype(own.dtype))
        for name, value in (weights if source is None else _kept(whole, weights) | weights).items()
    )


def _kept(whole: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Return what is not trained of a transformer, as it was loaded."""
    return {n: v.numpy() for n, v in whole.state_dict().items() if n not in weights}
