"""The memory of a recipe, counted without weights and without a GPU.

The real passes run on fake tensors, see `allocations.py`. What the devices of a run hold is what
their workers do: `tasks/worker/engine.py`, `digen_core/models/versions.py`, and the optimizer step.
"""

from collections.abc import Callable
from functools import partial
from math import ceil
from pathlib import Path
from typing import Final

import torch

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.config.size import tokens_of
from digen_core.control.costs import Linear
from digen_core.gang.cutting import cut
from digen_core.gang.degrees import check_degree, check_stages
from digen_core.gang.members import Gang
from digen_core.gang.meshes import mesh_of
from digen_core.gang.sharding import held
from digen_core.inputs.weight_files import shapes_in_folder
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.equal_blocks import with_few_blocks
from digen_core.models.families import adapter_of
from digen_core.models.image_size import read_settings
from digen_core.models.loading import prepare, shard_weights
from digen_core.models.pipeline.float8 import refresh
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.trainable import (
    trainable_parameters,
    trained_of_whole,
    trained_parameters,
)
from digen_core.planning.allocations import FakeModules
from digen_core.planning.fake_gang import fake_gang
from digen_core.planning.memory import Memory
from digen_core.planning.sizes import largest_size
from digen_core.records import SHOWN_SAMPLES

_MASTER: Final = 4  # bytes of a master weight, of a moment, of an average, of a sum


def memory_of(
    config: RunConfig, folder: Path, gang_size: int = 1, rank: int = 0, *, computes: bool = True
) -> Memory:
    """Count what a recipe needs on a device, or on a member of a gang, which is its leader.

    A follower has no text encoders and no VAE; of a gang with stages each has its own blocks. Text
    encoders count as their weights; what they compute with a prompt is little beside that.

    Args:
        config: of the run.
        folder: with the model's settings, ``transformer/config.json`` and ``vae/config.json``; if
            the text encoders are there, too, they are counted, else they are the family's usual.
        gang_size: members that hold the model together, as ``config.parallel`` says.
        rank: of the member.
        computes: False: only what is held all the time is counted, which takes a moment; peaks
            are 0.

    Raises:
        OSError: the settings are not there.
        UserError: the model has other sizes than the config asks for, or the gang cannot deal the
            tokens of its samples.
        ValueError: no module matches the config's LoRA targets.
    """
    with fake_gang(config.parallel, gang_size, rank) as gang:
        return _counted(config, folder, gang, computes)


def _counted(config: RunConfig, folder: Path, gang: Gang, computes: bool) -> Memory:
    check_stages(config, gang.size, transformer=read_settings(folder)[1])
    policy = on_meta(config, folder, gang)
    vae = policy.pipeline.vae
    whole = trained_parameters(policy).values()
    count, trained_bytes = sum(parameter.numel() for parameter in whole), _bytes_of(*whole)
    found = _Peaks(policy, config, gang, computes)
    trained = [held(parameter) for parameter in trainable_parameters(policy).values()]
    weights = sum(_bytes_of(*transformer.parameters()) for transformer in policy.transformers)
    low_precision = sum(layer.low_bytes for layer in policy.float8)
    has_lora = config.train.lora is not None
    # beside the newest: older ones on which groups began, and the one that generates meanwhile
    others = config.schedule.num_older + (config.train.updates_per_iteration > 1)
    is_base_dropped = not config.schedule.num_older  # else it is one of the others
    base = config.schedule.push == "delta" and is_base_dropped  # its rows, to serve deltas of
    adapters = _bytes_of(*trained) * (2 + others) if has_lora else 0  # one belongs to no version
    # of a version, on the host: the members', and their rows, which they serve
    copies = 1 if gang.shards_weights or gang.size == 1 else gang.size // gang.stages + 1
    policies = 1 + config.keeps_old  # of a version; between two updates there is one more
    held_versions = ((1 + others) * policies + config.keeps_start) * copies + base * policies
    # of each trained weight
    numbers = 2 + policies + bool(config.train.ema_decay) + config.keeps_start
    return Memory(
        weights=weights - (_bytes_of(*trained) if has_lora else 0),
        adapters=adapters,
        text_encoders=text_encoder_bytes(config.model, folder) if gang.is_leader else 0,
        vae=_bytes_of(*vae.parameters(), *vae.buffers()) if gang.is_leader else 0,
        step=found.step,
        decode=found.decode,
        pack=found.pack,
        gradient_sum=sum(parameter.numel() for parameter in trained) * _MASTER,
        versions=0 if has_lora else trained_bytes * held_versions,
        state=count * _MASTER * numbers,
        step_copies=count * _MASTER * numbers,  # the next state
        offload=frozenset(config.model.offload),
        num_shares=gang.num_shares,
        low_precision=low_precision,
        graphed=config.rollout.cuda_graphs,
        most_decoded=None if config.is_decoded else SHOWN_SAMPLES,
    )


def on_meta(config: RunConfig, folder: Path, gang: Gang) -> PipelinePolicy:
    """Build a config's model on the meta device, in its dtypes, as a worker prepares it.

    Of a gang with stages it is the member's own; none is much larger than another, unless
    ``parallel.stage_blocks`` gives it more.
    """
    settings = {"device": "meta", "compile": False, "attention": "native"}  # a fused kernel
    model = config.model.model_copy(update=settings)
    policy = adapter_of(model.family).with_random_weights(model, folder)
    if gang.stages > 1:
        for transformer in policy.transformers:
            cut(transformer, FAMILIES[model.family], gang)
        policy.whole = trained_of_whole(policy, config.train.lora)
    with torch.device("meta"):
        prepare(policy, config.model_copy(update={"model": model}))
    dtypes = policy.dtypes(TORCH_DTYPES[model.dtype])
    policy.pipeline.vae.to(dtypes.get("vae", dtypes["default"]))
    return policy


class _Peaks:
    """The peaks of a policy's passes, on lines through one item and the most there are.

    Of several sizes they are those of the largest.
    """

    def __init__(
        self, policy: PipelinePolicy, config: RunConfig, gang: Gang, computes: bool
    ) -> None:
        self._policy = policy
        rollout = config.rollout
        self._precisions = {rollout.precision, rollout.of_candidates.precision}
        self._computes = computes
        self._fake = FakeModules(*policy.transformers, policy.pipeline.vae)
        policy.device = torch.device("cpu")  # a fake one
        self._join(config, gang)
        largest = largest_size(config.model)
        self._trained = policy.at_size(largest)
        # evaluations have the config's size
        self._sampled = policy.at_size(max(largest, config.model.size, key=tokens_of))
        self._fake.change(lambda: refresh(policy.float8))  # it is held, no part of a peak
        shares = gang.num_shares
        by_few = not (gang.shards_weights or gang.stages > 1)  # shared blocks know of each other
        self.step = self._line(self._step, ceil(config.batch_size / shares), by_few=by_few)
        most = config.fragment_size if config.is_decoded else SHOWN_SAMPLES
        self.decode = Linear()
        if gang.is_leader:
            self.decode = self._line(self._decode, min(most, config.fragment_size), by_few=False)
        self.pack = self._line(self._pack, ceil(config.train.pack_size / shares), by_few=by_few)

    def _join(self, config: RunConfig, gang: Gang) -> None:
        """Share the model with a gang, as ``prepare`` does where tensors are real."""
        policy = self._policy
        check_degree(config, gang.size, (policy.pipeline.vae.config, policy.transformer.config))
        policy.join(gang)
        if gang.shards_weights:
            mesh = mesh_of(policy.device, member=gang.size)
            self._fake.change(lambda: shard_weights(policy, mesh))

    def _line(self, work: Callable[[int], None], most: int, *, by_few: bool) -> Linear:
        """Return a line that is nowhere too low between the two: the peak is a convex function.

        Args:
            work: a pass of so many items.
            most: items.
            by_few: count it with few of the blocks.
        """
        if not self._computes:
            return Linear()
        one = self._peak(partial(work, 1), by_few=by_few, is_first=True)
        if most == 1:
            return Linear(per_item=one)
        # the first pass may leave something behind that the second then does not need
        last = self._peak(partial(work, most), by_few=by_few, is_first=False)
        slope = max(last - one, 0) / (most - 1)
        return Linear(fixed=max(one - slope, 0), per_item=slope)

    def _peak(self, work: Callable[[], None], *, by_few: bool, is_first: bool) -> int:
        if not by_few:
            return self._fake.peak(work)
        measured = partial(self._fake.peak, work)
        return with_few_blocks(self._policy, measured, first_differs=is_first)

    @torch.no_grad()
    def _step(self, num_samples: int) -> None:
        for precision in sorted(self._precisions):
            with self._sampled.sampling(precision):
                self._velocity(self._sampled, num_samples)

    @torch.no_grad()
    def _decode(self, num_samples: int) -> None:
        policy = self._sampled
        latents, vae = policy.vae_latents(self._latent(policy, num_samples)), policy.pipeline.vae
        vae.decode(latents.to(vae.dtype), return_dict=False)

    def _pack(self, num_pairs: int) -> None:
        parameters = list(trainable_parameters(self._policy).values())
        loss = self._velocity(self._trained.in_training(), num_pairs).sum()
        if self._policy.gang.shards_weights:
            loss.backward()
            for parameter in parameters:
                parameter.grad = None
        else:
            torch.autograd.grad(loss, parameters, allow_unused=True)

    def _velocity(self, policy: PipelinePolicy, count: int) -> torch.Tensor:
        return policy.velocity(
            self._latent(policy, count), torch.empty(count), policy.blank_condition(count)
        )

    def _latent(self, policy: PipelinePolicy, count: int) -> torch.Tensor:
        return torch.empty(count, *policy.latent_shape, dtype=policy.latent_dtype)


def _bytes_of(*tensors: torch.Tensor) -> int:
    return sum(held(tensor).nbytes for tensor in tensors)


def text_encoder_bytes(model: ModelConfig, folder: Path) -> int:
    """Return the bytes of the text encoders' weights: those that are there, or the usual."""
    itemsize = TORCH_DTYPES[model.dtype].itemsize
    here = sorted(folder.glob("text_encoder*"))
    here += folder.glob("connectors")  # they are where text encoders are
    if not here:
        _, transformer = read_settings(folder)
        return round(FAMILIES[model.family].num_text_parameters(transformer) * itemsize)
    return itemsize * sum(
        torch.Size(shape).numel() for part in here for shape in shapes_in_folder(part).values()
    )
