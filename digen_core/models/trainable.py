"""The trained weights of a policy: LoRA adapters or everything, as arrays by name.

Master weights are float32 (float64 for float64 models) whatever the model's dtype; what is pushed
is rounded to each parameter's dtype. Both are plain dicts of NumPy arrays, because that is what
travels between workers without a copy.
"""

import copy
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.distributed.tensor import DTensor

from digen_core.config.train import LoraConfig
from digen_core.errors import ConfigError
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import own_rows
from digen_core.gang.sharding import held, held_of
from digen_core.gang.stage_files import without_numbers
from digen_core.gang.stage_parts import loaded_values
from digen_core.inputs.weight_files import layers_of
from digen_core.models.experts import changed, reference_of
from digen_core.models.lora_targets import check_modules, check_targets, learning
from digen_core.models.policy import Policy
from digen_core.seeding import INITIAL_WEIGHTS, generator_for
from digen_core.transport.arrays import Weights, viewed

PolicyT = TypeVar("PolicyT", bound=Policy)

FIRST_ADAPTER: Final = "default"
"""Name of the adapter of ``make_trainable``. Weights have this name in theirs, whichever adapter
holds them: a version has the same names, and so the same hash, everywhere."""

_ADAPTED: Final = WeakKeyDictionary[nn.Module, list[LoraLayer]]()
"""The layers of a transformer that have adapters."""


def make_trainable(
    policy: Policy,
    lora: LoraConfig | None,
    *,
    keep_reference: bool = False,
    gradient_checkpointing: bool = False,
) -> None:
    """Attach LoRA adapters, or open all weights of the transformer for training.

    Args:
        policy: freshly loaded.
        lora: adapters to attach; None trains everything.
        keep_reference: the base model will be asked for (KL). Adapters can be turned off for that;
            full training keeps a frozen copy.
        gradient_checkpointing: compute blocks again for their gradients.

    Raises:
        ConfigError: one of ``lora.targets`` is no layer of the transformer.
    """
    transformer = policy.transformer
    if lora is None:
        if keep_reference:
            policy.reference_transformer = reference_of(transformer)
        transformer.requires_grad_(True)
        own = dict(transformer.named_parameters())
        for name in own.keys() - learning(own, policy.idle):
            own[name].requires_grad_(False)
    else:
        _attach_first(policy, lora)
    if gradient_checkpointing:
        transformer.enable_gradient_checkpointing()


def _attach_first(policy: Policy, lora: LoraConfig) -> None:
    parameters = policy.transformer.named_parameters()
    layers = layers_of({name: tuple(own.shape) for name, own in parameters})
    layers = learning(layers, policy.idle)
    if policy.whole is None:
        check_targets(lora.targets, layers)
    elif not any(f".{layer}".endswith(f".{end}") for layer in layers for end in lora.targets):
        raise ConfigError(
            f"train.lora.targets {list(lora.targets)} name no layer of one of the stages; name "
            "more layers, or use fewer parallel.stages"
        )
    modules = dict(policy.transformer.named_modules())
    asked = learning(modules, policy.idle)
    check_modules(lora.targets, layers, {name: modules[name] for name in asked})
    attach_adapter(policy, as_peft(lora, policy.idle), FIRST_ADAPTER)


def as_peft(lora: LoraConfig, idle: str) -> peft.LoraConfig:
    """Return the settings of adapters as peft takes them.

    Args:
        lora: of the config.
        idle: what is in the names of layers that no velocity depends on; empty: there are none.
    """
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        exclude_modules=f".*({idle}).*" if idle else None,
        init_lora_weights="gaussian" if lora.init == "gaussian" else True,
    )


def attach_adapter(policy: Policy, adapter: peft.LoraConfig, name: str) -> None:
    """Attach an adapter beside those that are there, and make it the active one.

    It computes in the dtype of each layer that it is of, as the layer does: what is trained are
    masters elsewhere, in float32 or better.

    Raises:
        ValueError: no module of the transformer matches the adapter's targets.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config` attribute")
        policy.transformer.add_adapter(adapter, name)
    adapted = [own for own in policy.transformer.modules() if isinstance(own, LoraLayer)]
    for layer in adapted:
        if name in layer.lora_A:
            # a family may keep a layer in float32
            dtype = torch.promote_types(layer.weight.dtype, policy.dtype)
            layer.lora_A[name].to(dtype)
            layer.lora_B[name].to(dtype)
    _ADAPTED[policy.transformer] = adapted


def use_adapter(policy: Policy, name: str) -> None:
    """Have layers compute with one of their adapters; which parameters are trained stays.

    peft's own way looks through all modules, and says of each parameter of each adapter whether it
    has a gradient: tens of milliseconds, for which a GPU would wait.
    """
    for layer in _ADAPTED[policy.transformer]:
        layer._active_adapter = [name]


def trainable_parameters(policy: Policy) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, in the module's own order.

    With adapters those are the active one's, under the first adapter's names.
    """
    return {
        re.sub(r"(\.lora_[AB]\.)[^.]+", rf"\1{FIRST_ADAPTER}", name): parameter
        for name, parameter in policy.transformer.named_parameters()
        if parameter.requires_grad
    }


def trained_parameters(policy: Policy) -> Mapping[str, torch.Tensor]:
    """Return what is trained of the whole transformer, in its order: of a stage without numbers."""
    return trainable_parameters(policy) if policy.whole is None else policy.whole


def trained_of_whole(policy: Policy, lora: LoraConfig | None) -> dict[str, nn.Parameter]:
    """Return what would be trained of the transformer that a stage is of, on the meta device.

    Raises:
        ConfigError: one of ``lora.targets`` is no layer of it.
    """
    whole = copy.copy(policy)
    whole.transformer = changed(
        policy.transformer, lambda own: without_numbers(own.config, policy.dtype)
    )
    make_trainable(whole, lora)
    return trainable_parameters(whole)


def initial_weights(
    policy: Policy, lora: LoraConfig | None, *, seed: int, gang: Gang = ALONE
) -> Weights:
    """Return version 0: the loaded weights, or seeded adapters (A as ``lora.init`` says, B zero).

    It is collective in a gang with stages.

    peft draws A from the global generator; drawing it again from the run's seed makes version 0 the
    same on every machine.

    Args:
        policy: with what is trained.
        lora: the adapters that are trained, if they are.
        seed: of the run.
        gang: whose member this process is; it gets its rows.
    """
    weights = {}
    loaded = loaded_values(trainable_parameters(policy), trained_parameters(policy), gang)
    for index, (name, value) in enumerate(loaded):
        if lora is not None and "lora_A" in name:
            value = _drawn(value.shape, lora, generator_for(seed, INITIAL_WEIGHTS, index))
        own = value.to_local() if isinstance(value, DTensor) else own_rows(value, gang)
        weights[name] = own.to("cpu", policy.latent_dtype).numpy().copy()
    return weights


def _drawn(shape: torch.Size, lora: LoraConfig, generator: torch.Generator) -> torch.Tensor:
    """Return A [rank, columns] as peft draws it."""
    if lora.init == "gaussian":
        return torch.randn(shape, generator=generator) / lora.rank
    return nn.init.kaiming_uniform_(torch.empty(shape), a=math.sqrt(5), generator=generator)


def set_weights(policy: Policy, weights: Mapping[str, np.ndarray]) -> None:
    """Copy whole weights into the policy's trainable parameters.

    Raises:
        ValueError: the names or shapes are not those of the policy; nothing has changed.
    """
    parameters = trainable_parameters(policy)
    _check_names(weights, parameters)
    copy_weights(
        {name: held_of(weights[name], parameter) for name, parameter in parameters.items()},
        parameters,
    )


@torch.no_grad()
def copy_weights(weights: Mapping[str, np.ndarray], parameters: Mapping[str, nn.Parameter]) -> None:
    """Copy weights, masters or rounded, into parameters: what this device holds of each.

    Raises:
        ValueError: the names or shapes are not those of the parameters; nothing has changed.
    """
    check_weights(weights, parameters)
    for name, parameter in parameters.items():
        held(parameter).copy_(viewed(weights[name]))


def check_weights(
    weights: Mapping[str, np.ndarray], parameters: Mapping[str, nn.Parameter]
) -> None:
    """Compare the names and shapes of weights with what this device holds of parameters.

    Raises:
        ValueError: they differ.
    """
    _check_names(weights, parameters)
    for name, parameter in parameters.items():
        shape = tuple(held(parameter).shape)
        if shape != weights[name].shape:
            raise ValueError(
                f"weights do not fit the policy: {name} is {weights[name].shape}, not {shape}"
            )


def _check_names(weights: Mapping[str, np.ndarray], parameters: Mapping[str, nn.Parameter]) -> None:
    if parameters.keys() != weights.keys():
        odd = sorted(parameters.keys() ^ weights.keys())
        raise ValueError(f"weights do not fit the policy: {len(odd)} names differ, e.g. {odd[0]}")


@contextmanager
def reference_weights(policy: PolicyT) -> Iterator[PolicyT]:
    """Run the body with the base model and without gradients; as it is asked, with its guidance.

    Adapters turned off between a forward and its backward lose the gradients silently, so the
    reference forward of a pack comes before its policy forward.
    """
    transformer, adapted = policy.transformer, list[LoraLayer]()
    if policy.reference_transformer is not None:
        policy.transformer = policy.reference_transformer
    else:
        adapted = _ADAPTED[transformer]
    try:
        with torch.no_grad(), _without_adapters(adapted):
            yield policy.as_reference()
    finally:
        policy.transformer = transformer


@contextmanager
def _without_adapters(adapted: Sequence[LoraLayer]) -> Iterator[None]:
    """Have layers leave out their adapters; why not in peft's own way, `use_adapter` says."""
    for layer in adapted:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in adapted:
            layer._disable_adapters = False
