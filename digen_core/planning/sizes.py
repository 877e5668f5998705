"""Sizes of a recipe: parameters, arithmetic and bytes, without weights and without a GPU.

The transformer and the VAE are built on torch's meta device from their settings, and the real
forward and backward passes run there: torch counts their matrix products and convolutions. Of
blocks that are alike a few are counted, see `digen_core.models.equal_blocks`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from operator import itemgetter
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.config.size import Size, tokens_of
from digen_core.control.costs import Sent
from digen_core.errors import UserError
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.attention import set_attention
from digen_core.models.equal_blocks import with_few_blocks
from digen_core.models.families import adapter_of
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.trainable import make_trainable, reference_weights, trainable_parameters
from digen_core.planning.model_settings import settings_folder
from digen_core.rollout.references import reference_share
from digen_core.rollout.steps import steps_of_iteration

_FLOAT32_BYTES = 4  # log-probs, embeddings and sums of gradients travel in float32


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a recipe holds, computes and moves. FLOPs count a multiplication and an addition."""

    parameters: int  # of the transformer, without adapters
    trained_parameters: int
    trains_all: bool  # and not adapters
    weight_bytes: int  # of the transformer in the model's dtype
    push_bytes: int  # trained weights of a version, with those of an old policy that generates
    step_flops: int  # one sample at one denoising step, guidance included; a mean if some steps
    # ask the reference policy too
    pair_flops: int  # one pair: forward and backward, and who trains asks the reference policy
    decode_flops: int  # the VAE's, of one sample; 0 where none is decoded to be trained
    latent_bytes: int  # of one sample, as it is stored
    velocity_bytes: int  # of one sample, as one of the reference policy goes with it
    trajectory_bytes: int  # all of one sample: latents, log-probs and such velocities
    embedding_bytes: int  # of one prompt, and of what guidance steers away from


def sent_of(config: RunConfig, sizes: Sizes) -> Sent:
    """Return the bytes that devices send each other for a recipe.

    A denoising step's task hands on the latents before and after it. Where clean latents are
    trained, the last step's are all that training takes. With either go velocities of the
    reference policy, where who generates asks it. Of several sizes samples have the mean one.
    """
    tokens = _mean_tokens(config.model)
    transition = 2 * tokens * sizes.latent_bytes + _FLOAT32_BYTES
    velocity = tokens * sizes.velocity_bytes * config.generates_reference
    shared = config.num_trained_steps if config.trains_clean else 1
    return Sent(
        version=sizes.push_bytes,
        transition=transition / shared + velocity,
        condition=sizes.embedding_bytes,
        gradient_sum=sizes.trained_parameters * _FLOAT32_BYTES,
    )


def of_samples(sizes: Sizes, config: RunConfig) -> Sizes:
    """Return what a recipe needs with samples of the mean size, which are counted with one.

    Decoding is taken to cost as much a pixel.
    """
    cost, more = cost_of_default(config.model), _mean_tokens(config.model) - 1
    per_sample = sizes.latent_bytes * (config.rollout.num_steps + 1)
    per_sample += sizes.velocity_bytes * config.most_reference_steps * config.generates_reference
    return replace(
        sizes,
        step_flops=round(sizes.step_flops / cost),
        pair_flops=round(sizes.pair_flops / cost),
        decode_flops=round(sizes.decode_flops * (1 + more)),
        latent_bytes=round(sizes.latent_bytes * (1 + more)),
        velocity_bytes=round(sizes.velocity_bytes * (1 + more)),
        trajectory_bytes=round(sizes.trajectory_bytes + per_sample * more),
    )


def _mean_tokens(model: ModelConfig) -> float:
    """Return the tokens of a sample of the mean size, in those of one of height and width."""
    return fmean(map(tokens_of, model.sizes or (model.size,))) / tokens_of(model.size)


def sizes_of(config: RunConfig, folder: Path) -> Sizes:
    """Count what a recipe's model needs.

    Args:
        config: of the run.
        folder: with the model's settings, ``transformer/config.json`` and ``vae/config.json``.

    Raises:
        OSError: the settings are not there.
        UserError: the model has other sizes than the config asks for.
        ValueError: no module matches the config's LoRA targets.
    """
    policy = _counted_policy(config.model, folder)
    parameters = sum(parameter.numel() for parameter in policy.transformer.parameters())
    train = config.train
    with torch.device("meta"):
        make_trainable(
            policy,
            train.lora,
            keep_reference=config.keeps_reference,
            gradient_checkpointing=train.gradient_checkpointing,
        )
    trained = sum(parameter.numel() for parameter in trainable_parameters(policy).values())
    dtype = TORCH_DTYPES[config.model.dtype]
    latent_bytes = prod(policy.latent_shape) * TORCH_DTYPES[config.rollout.storage].itemsize
    num_logprobs = len(steps_of_iteration(config, 0).noisy)
    velocity_bytes = prod(policy.latent_shape) * policy.latent_dtype.itemsize
    trained_as, decode_flops = policy.in_training(), _decode_flops(policy)
    velocity_flops, trained_flops, base_flops = _velocity_flops(policy)
    share, asked = reference_share(config), config.velocities_per_step - config.own_velocities
    asked_flops = share * base_flops + (1 - share) * trained_flops
    encode_flops = decode_flops * config.encodings_per_step  # a VAE's halves take about as many
    return Sizes(
        parameters=parameters,
        trained_parameters=trained,
        trains_all=train.lora is None,
        weight_bytes=parameters * dtype.itemsize,
        push_bytes=trained * dtype.itemsize * (1 + config.keeps_old),
        step_flops=round(
            config.own_velocities * velocity_flops + asked * asked_flops + encode_flops
        ),
        pair_flops=_pair_flops(trained_as, config) + round(config.other_velocities * trained_flops),
        decode_flops=decode_flops if config.is_decoded else 0,
        latent_bytes=latent_bytes,
        velocity_bytes=velocity_bytes,
        trajectory_bytes=latent_bytes * (config.rollout.num_steps + 1)
        + _FLOAT32_BYTES * num_logprobs
        + velocity_bytes * config.most_reference_steps * config.generates_reference,
        embedding_bytes=sum(value.nbytes for value in policy.blank_condition(1).values()),
    )


def _counted_policy(model: ModelConfig, folder: Path) -> PipelinePolicy:
    """Return a model without weights, of whose work FLOPs can be counted."""
    policy = adapter_of(model.family).without_weights(model, folder)
    # else it is the kernel of the last model of this process, which may not count, or take a mask
    set_attention(policy, model.model_copy(update={"attention": "native"}))
    return policy


def cost_of_default(model: ModelConfig, num_images: int | None = None) -> float:
    """Return what a sample of the size that is measured and counted costs."""
    return cost_of_sample(model, model.size, num_images)


def largest_size(model: ModelConfig) -> Size:
    """Return the largest size of the samples that are trained, of which memory is counted."""
    return max(model.sizes or (model.size,), key=tokens_of)


def cost_of_sample(model: ModelConfig, size: Size, num_images: int | None = None) -> float:
    """Return what a step of a sample costs, in those of the mean size.

    Args:
        model: its config.
        size: of the sample.
        num_images: that its prompt comes with; None: the most that there are.
    """
    cost = costs_of_sizes(model).get(size, 1.0)
    if model.num_source_images > 1 and num_images is not None:
        cost *= _costs_of_images(model.model_dump_json())[num_images]
    return cost


@lru_cache(maxsize=8)
def _costs_of_images(dumped: str) -> Mapping[int, float]:
    """Return what a step costs with fewer source images, as a share of that with the most.

    That is counted at one size: FLOPs are a polynomial of degree 2 of their number, as of tokens.
    """
    model = ModelConfig.model_validate_json(dumped)
    most = model.max_source_images
    chosen = sorted({1, (1 + most) // 2, most})
    try:
        folder = settings_folder(model.path)
        counted = [
            step_flops(_counted_policy(model.with_images(number), folder)) for number in chosen
        ]
        flops = np.poly1d(np.polyfit(chosen, counted, len(chosen) - 1))
    except (UserError, OSError):
        flops = np.poly1d([1, 1])  # as many tokens as so many images and the sample have
    return {number: float(flops(number) / flops(most)) for number in range(1, most + 1)}


def costs_of_sizes(model: ModelConfig) -> Mapping[Size, float]:
    """Return what a step of a sample of each size costs, in the mean of ``model.sizes``.

    That is its share of FLOPs, which grow with the square of tokens where attention is; of a model
    whose settings are not here, its share of tokens. Empty where samples have one size.
    """
    return _costs_of_sizes(model.model_dump_json()) if model.sizes else {}


@lru_cache(maxsize=8)
def _costs_of_sizes(dumped: str) -> Mapping[Size, float]:
    model = ModelConfig.model_validate_json(dumped)
    tokens = {size: tokens_of(size) for size in (*model.sizes, model.size)}
    try:
        flops = _flops_of_tokens(model, tokens)
    except (UserError, OSError):
        flops = np.poly1d([1, 0])
    mean = fmean(float(flops(tokens[size])) for size in model.sizes)
    return {size: float(flops(number)) / mean for size, number in tokens.items()}


def _flops_of_tokens(model: ModelConfig, tokens: Mapping[Size, int]) -> np.poly1d:
    """Return the FLOPs of a step: a polynomial of degree 2, which three sizes tell."""
    policy = _counted_policy(model, settings_folder(model.path))
    sizes = list(
        {number: size for size, number in sorted(tokens.items(), key=itemgetter(1))}.values()
    )
    chosen = [sizes[place] for place in sorted({0, len(sizes) // 2, len(sizes) - 1})]
    counted = [step_flops(policy.at_size(size)) for size in chosen]
    return np.poly1d(np.polyfit([tokens[size] for size in chosen], counted, len(chosen) - 1))


def step_flops(policy: PipelinePolicy) -> int:
    """Return the FLOPs of one velocity of one sample."""
    with torch.no_grad():
        return _counted(policy, lambda: velocity_of_one(policy))


def _velocity_flops(policy: PipelinePolicy) -> tuple[int, int, int]:
    """Return the FLOPs of a velocity: of samples, in training, and of the reference policy."""
    training, reference = policy.in_training(), policy.as_reference()
    own = step_flops(policy)
    trained = own if training is policy else step_flops(training)
    is_alike = reference.config == training.config
    return own, trained, trained if is_alike else step_flops(reference)


def _pair_flops(policy: PipelinePolicy, config: RunConfig) -> int:
    def pair() -> None:
        if config.algorithm.kl_coefficient and not config.generates_reference:
            with reference_weights(policy) as reference:
                velocity_of_one(reference)
        velocity_of_one(policy).sum().backward()

    return _counted(policy, pair)


def _decode_flops(policy: PipelinePolicy) -> int:
    with torch.no_grad():
        return _flops(lambda: policy.pipeline.vae.decode(policy.vae_latents(_latent(policy))))


def velocity_of_one(policy: PipelinePolicy) -> torch.Tensor:
    """Return the velocity of one sample, of which only shape and dtype count."""
    sigma = torch.empty(1, device=policy.device)
    return policy.velocity(_latent(policy), sigma, policy.blank_condition(1))


def _latent(policy: PipelinePolicy) -> torch.Tensor:
    return torch.empty(1, *policy.latent_shape, dtype=policy.latent_dtype, device=policy.device)


def _counted(policy: PipelinePolicy, work: Callable[[], object]) -> int:
    """Return the FLOPs of a work of the transformers, counted on a few of their blocks."""
    return with_few_blocks(policy, lambda: _flops(work))


def _flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())
