"""Load the model of a run, ready to be trained: for its workers and for the serial loop alike."""

from pathlib import Path

import diffusers
import torch
import transformers

from digen_core.config.run import RunConfig
from digen_core.models.attention import set_attention
from digen_core.models.compiled import compile_blocks
from digen_core.models.families import adapter_of
from digen_core.models.pipeline_policy import PipelinePolicy
from digen_core.models.policy import Part, Policy
from digen_core.models.trainable import make_trainable


def load_trainable(config: RunConfig, parts: frozenset[Part]) -> Policy:
    """Load parts of a config's model, and take the CPU threads of a worker.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    diffusers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()  # it would say of each prompt that CLIP cuts it
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(config.cluster.threads_per_worker)
    policy = adapter_of(config.model.family).load(config.model, parts)
    prepare(policy, config)
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


def prepare(policy: Policy, config: RunConfig) -> None:
    """Choose the attention, attach what is trained, and compile if the config says so.

    Raises:
        ConfigError: there is no such attention here, a LoRA target is no layer of the model, or
            there is no compiler.
    """
    set_attention(policy, config.model)
    make_trainable(
        policy,
        config.train.lora,
        keep_reference=config.keeps_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    compile_blocks(policy, config.model)
