"""Chains of tiny models, each counted once."""

from functools import cache
from pathlib import Path

from digen_core.config.run import RunConfig
from digen_core.planning.stages.blocks import chain_of
from digen_core.planning.stages.chain import Chain
from support.families import frames_of


def config_of(family: str, *, rank: int | None = 3, again: bool = False) -> RunConfig:
    """Images of 32 x 48 pixels, videos of 5 frames."""
    sizes = {"height": 32, "width": 48, "num_frames": frames_of(family), "max_sequence_length": 24}
    model = {"family": family, "guidance_scale": 3.0, "dtype": "bfloat16", **sizes}
    train = {"lora": rank and {"rank": rank}, "gradient_checkpointing": again}
    return RunConfig.model_validate({"model": model, "train": train})


@cache
def chain_of_tiny(folder: str, family: str, rank: int | None, again: bool) -> Chain:
    """Return the chain of a tiny model, as configured by ``config_of``."""
    return chain_of(config_of(family, rank=rank, again=again), Path(folder))
