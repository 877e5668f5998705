"""The memory of a recipe, counted without weights and without a GPU.

The real passes run on fake tensors, see `allocations.py`. What the devices of a run hold is what
their workers do: `tasks/worker/engine.py`, `digen_core/models/versions.py`, and the optimizer step.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.inputs.weight_files import shapes_in_folder
from digen_core.models.families import adapter_of
from digen_core.models.loading import prepare
from digen_core.models.pipeline_policy import PipelinePolicy
from digen_core.models.policy import TORCH_DTYPES
from digen_core.models.trainable import trainable_parameters
from digen_core.planning.allocations import FakeModules
from digen_core.planning.memory import Memory

_MASTER: Final = 4  # bytes of a master weight, of a moment, of an average, of a sum


def memory_of(config: RunConfig, folder: Path) -> Memory:
    """Count what a recipe needs.

    Text encoders count as their weights; what they compute with a prompt is little beside that.

    Args:
        config: of the run.
        folder: with the model's settings, ``transformer/config.json`` and ``vae/config.json``; if
            the text encoders are there, too, they are counted, else they are the family's usual.

    Raises:
        OSError: the settings are not there.
        UserError: the model has other sizes than the config asks for.
        ValueError: no module matches the config's LoRA targets.
    """
    model = config.model
    policy = _on_meta(config, folder)
    vae = policy.pipeline.vae
    trained = trainable_parameters(policy)
    count = sum(parameter.numel() for parameter in trained.values())
    trained_bytes = _bytes_of(*trained.values())
    has_lora = config.train.lora is not None
    others = config.schedule.max_staleness if config.schedule.stale_share else 0
    adapters = trained_bytes * (2 + others) if has_lora else 0  # the first belongs to no version
    held = sum(_bytes_of(*transformer.parameters()) for transformer in policy.transformers)
    numbers = 3 + bool(config.train.ema_decay) + config.keeps_old  # of each trained weight
    found = _Peaks(policy, config)
    return Memory(
        weights=held - (trained_bytes if has_lora else 0),
        adapters=adapters,
        text_encoders=_text_encoder_bytes(model, folder),
        vae=_bytes_of(*vae.parameters(), *vae.buffers()),
        step=found.step,
        decode=found.decode,
        pack=found.pack,
        gradient_sum=count * _MASTER,
        versions=0 if has_lora else trained_bytes * (1 + others),
        state=count * _MASTER * numbers,
        # its copies of weights, gradient and moments, the gradient as it came, and the average
        step_copies=count * _MASTER * (5 + bool(config.train.ema_decay)),
        offload=frozenset(model.offload),
    )


def _on_meta(config: RunConfig, folder: Path) -> PipelinePolicy:
    """Build a config's model on the meta device, in its dtypes, as a worker prepares it."""
    settings = {"device": "meta", "compile": False, "attention": "native"}  # a fused kernel
    model = config.model.model_copy(update=settings)
    policy = adapter_of(model.family).with_random_weights(model, folder)
    with torch.device("meta"):
        prepare(policy, config.model_copy(update={"model": model}))
    policy.pipeline.vae.to(policy.vae_dtype(TORCH_DTYPES[model.dtype]))
    return policy


class _Peaks:
    """The peaks of a policy's passes, on lines through one item and the most there are."""

    def __init__(self, policy: PipelinePolicy, config: RunConfig) -> None:
        self._policy = policy
        self._fake = FakeModules(*policy.transformers, policy.pipeline.vae)
        policy.device = torch.device("cpu")  # a fake one
        self.step = self._line(self._step, config.fragment_size)
        self.decode = self._line(self._decode, config.fragment_size)
        self.pack = self._line(self._pack, config.train.pack_size)

    def _line(self, work: Callable[[int], None], most: int) -> Linear:
        """Return a line that is nowhere too low between the two: the peak is a convex function."""
        one = self._fake.peak(lambda: work(1))
        if most == 1:
            return Linear(per_item=one)
        slope = (self._fake.peak(lambda: work(most)) - one) / (most - 1)
        return Linear(fixed=max(one - slope, 0), per_item=slope)

    @torch.no_grad()
    def _step(self, num_samples: int) -> None:
        self._velocity(num_samples)

    @torch.no_grad()
    def _decode(self, num_samples: int) -> None:
        latents = self._policy.vae_latents(self._latent(num_samples))
        vae = self._policy.pipeline.vae
        vae.decode(latents.to(vae.dtype), return_dict=False)

    def _pack(self, num_pairs: int) -> None:
        parameters = list(trainable_parameters(self._policy).values())
        loss = self._velocity(num_pairs).sum()
        torch.autograd.grad(loss, parameters, allow_unused=True)

    def _velocity(self, count: int) -> torch.Tensor:
        policy = self._policy
        return policy.velocity(
            self._latent(count), torch.empty(count), policy.blank_condition(count)
        )

    def _latent(self, count: int) -> torch.Tensor:
        return torch.empty(count, *self._policy.latent_shape, dtype=self._policy.latent_dtype)


def _bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _text_encoder_bytes(model: ModelConfig, folder: Path) -> int:
    """Return the bytes of the text encoders' weights: those that are there, or the usual."""
    itemsize = TORCH_DTYPES[model.dtype].itemsize
    here = sorted(folder.glob("text_encoder*"))
    if not here:
        return round(FAMILIES[model.family].text_parameters * itemsize)
    return itemsize * sum(
        torch.Size(shape).numel() for part in here for shape in shapes_in_folder(part).values()
    )
