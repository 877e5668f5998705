"""Load the model of a run, ready to be trained: for its workers and for the serial loop alike."""

from pathlib import Path

import diffusers
import torch
import transformers
from torch.distributed.device_mesh import DeviceMesh

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.gang.cutting import code
from digen_core.gang.degrees import check_cuts, check_degree, check_stages
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.meshes import mesh_of
from digen_core.gang.sharding import shard
from digen_core.models.attention import require_dealing, set_attention
from digen_core.models.compiled import blocks_of, compile_blocks
from digen_core.models.families import adapter_of
from digen_core.models.pipeline.cuda_graphs import graphed_transformers
from digen_core.models.pipeline.few_steps import check_few_steps
from digen_core.models.pipeline.float8 import float8_linears
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Part, Policy
from digen_core.models.trainable import make_trainable, trained_of_whole


def load_trainable(config: RunConfig, parts: frozenset[Part], gang: Gang = ALONE) -> Policy:
    """Load parts of a config's model, and take the CPU threads of a worker.

    Args:
        config: of the run.
        parts: what the worker's roles need.
        gang: whose member it is; loading is collective.

    Raises:
        ConfigError: the model cannot be loaded, or the gang cannot hold it together.
    """
    diffusers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()  # it would say of each prompt that CLIP cuts it
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(config.cluster.threads_per_worker)
    check_stages(config, gang.size)
    adapter = adapter_of(config.model.family)
    if gang.stages > 1:  # of a hub id nobody may have seen the blocks before
        folder = adapter.folder_of(config.model)
        transformer = diffusers.AutoModel.load_config(folder / "transformer")
        check_stages(config, gang.size, transformer=transformer)
    policy = adapter.load(config.model, parts, gang)
    prepare(policy, config, gang)
    return policy


def build_trainable(config: RunConfig, folder: Path) -> PipelinePolicy:
    """Build a config's model from its settings with random weights, and take a worker's threads.

    Args:
        config: of the run.
        folder: with ``transformer/config.json`` and ``vae/config.json`` of diffusers.

    Raises:
        OSError: one of them is not there.
        ConfigError: the model has other sizes than the config asks for, a LoRA target is no layer
            of it, or there is no compiler.
        torch.OutOfMemoryError: it does not fit into the device's memory.
    """
    torch.set_num_threads(config.cluster.threads_per_worker)
    policy = adapter_of(config.model.family).with_random_weights(config.model, folder)
    prepare(policy, config)
    return policy


def prepare(policy: PipelinePolicy, config: RunConfig, gang: Gang = ALONE) -> None:
    """Choose attention and precision, attach what is trained, code cuts, compile, join a gang.

    It is compiled if the config says so, and shared as it says; sharing is collective. Of a gang
    with stages the policy has its own blocks already.

    Raises:
        ConfigError: there is no such attention here, no layer for the precision of rollouts, a LoRA
            target is no layer of the model, a cut not between its blocks, there is no compiler, the
            gang cannot deal the tokens of the config's samples, or a model of few steps is asked
            for what it does not know.
    """
    set_attention(policy, config.model)
    policy.float8 = float8_linears(policy, config)  # before adapters are put around them
    if gang.stages > 1:
        policy.whole = trained_of_whole(policy, config.train.lora)
    make_trainable(
        policy,
        config.train.lora,
        keep_reference=config.keeps_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    check_cuts(config, policy.transformer.config)
    check_few_steps(config, policy.transformer.config)
    for transformer in policy.transformers:
        code(transformer, FAMILIES[config.model.family], policy.cuts)
    compile_blocks(policy, config.model)
    policy.graphed = graphed_transformers(policy, config, lambda: (policy.mode, policy.is_low))
    if gang.context_parallel > 1:
        require_dealing(policy.device, config.model)
        settings = policy.pipeline.vae.config, policy.transformer.config
        check_degree(config, gang.size, settings)
    policy.join(gang)
    if gang.shards_weights:
        shard_weights(policy, mesh_of(policy.device, member=gang.size))


def shard_weights(policy: PipelinePolicy, mesh: DeviceMesh) -> None:
    """Shard all weights but adapters, and the few that a family keeps in float32 (collective)."""
    has_adapters = bool(getattr(policy.transformer, "peft_config", None))
    for transformer in policy.transformers:
        plain = [
            parameter
            for parameter in transformer.parameters()
            if parameter.dtype != policy.dtype or (has_adapters and parameter.requires_grad)
        ]
        blocks = blocks_of(transformer)
        shard(transformer, blocks, mesh, policy.device, plain=plain, dtype=policy.dtype)
