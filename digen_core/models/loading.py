"""Load the model of a run, ready to be trained: for its workers and for the serial loop alike."""

import diffusers
import torch
import transformers

from digen_core.config import RunConfig
from digen_core.models import LOADERS
from digen_core.models.compiled import compile_blocks
from digen_core.models.policy import Part, Policy
from digen_core.models.trainable import make_trainable


def load_trainable(config: RunConfig, parts: frozenset[Part]) -> Policy:
    """Load parts of a config's model, and take the CPU threads of a worker.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(config.cluster.threads_per_worker)
    policy = LOADERS[config.model.family](config.model, parts)
    make_trainable(
        policy,
        config.train.lora,
        keep_reference=config.keeps_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    compile_blocks(policy, config.model)
    return policy
