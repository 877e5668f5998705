"""What would make a recipe fit: settings, and the gangs that are left where none is enough."""

from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from digen_core.planning.remedies import remedy


def config_of(family: str) -> RunConfig:
    model = {"family": family, "height": 64, "width": 64, "max_sequence_length": 24}
    train = {"gradient_checkpointing": True}
    offload = ["text_encoders", "vae", "transformer"]
    model |= {"vae_tiling": True, "dtype": "bfloat16", "offload": offload}
    return RunConfig.model_validate({"model": model, "train": train})


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("flux", "parallel.shard_weights = true and parallel.context_parallel = 4"),
        ("sd3", "parallel.shard_weights = true"),  # which deals no tokens
    ],
)
def test_the_smallest_gang_that_fits_is_named(tiny_families, family, keys):
    asked: list[int | None] = []

    def fits(_memory_in, size) -> bool:
        asked.append(size)
        return size is not None and size >= 4

    found = remedy(config_of(family), Path(tiny_families[family]), fits)
    assert found == f"{keys} in gangs of 4 (the devices' gang)"
    assert 8 not in asked
