"""Chains of tiny models, each counted once, and chains and networks of random numbers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.planning.stages.blocks import chain_of
from digen_core.planning.stages.chain import Block, Chain, Numbers
from digen_core.planning.stages.network import Network
from support.families import EDITED, EDITORS, family_of, frames_of


def config_of(family: str, *, rank: int | None = 3, again: bool = False) -> RunConfig:
    """Images of 32 x 48 pixels, videos of 5 frames."""
    sizes = {"height": 32, "width": 48, "num_frames": frames_of(family), "max_sequence_length": 24}
    model = {"family": family_of(family), "guidance_scale": 3.0, "dtype": "bfloat16", **sizes}
    train = {"lora": rank and {"rank": rank}, "gradient_checkpointing": again}
    prompts = EDITED if family in EDITORS else {}
    return RunConfig.model_validate({"model": model, "train": train, "prompts": prompts})


@cache
def chain_of_tiny(folder: str, family: str, rank: int | None, again: bool) -> Chain:
    """Return the chain of a tiny model, as configured by ``config_of``."""
    return chain_of(config_of(family, rank=rank, again=again), Path(folder))


def chain_of_arrays(
    forward: Numbers, weights: Numbers, cuts: Numbers, *, back: float = 2.0, **settings: Any
) -> Chain:
    """Return a chain of blocks with nothing beside them, whose backward is so many forwards."""
    nothing = Block("nothing", 0, 0, 0, 0)
    blocks = (
        Block(f"blocks.{n}", flops, back * flops, num_bytes, 0, 0, cut)
        for n, (flops, num_bytes, cut) in enumerate(zip(forward, weights, cuts, strict=True))
    )
    parts: dict[str, Any] = {"before": nothing, "blocks": tuple(blocks), "after": nothing}
    return Chain(**parts | settings)


def random_chain(random: np.random.Generator, num_blocks: int = 8) -> Chain:
    """Return unequal blocks of about 1 TFLOP and 1 GB; 2 MB cross each cut."""
    forward, weights = random.uniform(0.5, 1.5, (2, num_blocks))
    cuts = np.full(num_blocks, 2e6)
    return chain_of_arrays(forward * 1e12, weights * 1e9, cuts, velocity_bytes=2.6e5)


def random_network(
    random: np.random.Generator, sizes: Sequence[int], memory: Sequence[float] = (3e9, 6e9)
) -> Network:
    """Return devices at sites: 0.1 to 1.2 GB/s at one, 1 to 12 MB/s from one to another."""
    where = np.repeat(range(len(sizes)), sizes)
    shape = 2 * (len(where),)
    near = where[:, None] == where[None, :]
    site = np.exp(random.uniform(np.log(1e6), np.log(1.2e7), 2 * (len(sizes),)))
    site[np.diag_indices(len(sizes))] = np.exp(
        random.uniform(np.log(1e8), np.log(1.2e9), len(sizes))
    )
    site = np.maximum(site, site.T)
    noise = np.exp(random.normal(0, 0.3, shape))
    bandwidth = site[where[:, None], where[None, :]] * np.sqrt(noise * noise.T)
    rates = random.choice([1e13, 2e13, 4e13], len(where))
    return Network(rates, random.choice(memory, len(where)), bandwidth, np.where(near, 2e-4, 2e-2))
