"""What would make a recipe fit: settings, and the gangs that are left where none is enough."""

from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from digen_core.planning import remedies
from digen_core.planning.remedies import remedy

EVERYTHING = ["text_encoders", "vae", "transformer"]


def config_of(family: str) -> RunConfig:
    model = {"family": family, "height": 64, "width": 64, "max_sequence_length": 24}
    train = {"gradient_checkpointing": True}
    model |= {"vae_tiling": True, "dtype": "bfloat16", "offload": EVERYTHING}
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


@pytest.mark.parametrize("offload", [EVERYTHING, EVERYTHING[::-1], EVERYTHING[2:]])
def test_nothing_is_put_back_that_waits_in_the_hosts_memory(tiny_families, offload, monkeypatch):
    """What fits takes all of it there, and checkpoints."""
    model = {"family": "flux", "height": 64, "width": 64, "offload": offload}
    asked = list[RunConfig]()
    monkeypatch.setattr(remedies, "memory_of", lambda config, *_, **__: asked.append(config))

    def fits(memory_in, _size) -> bool:
        memory_in(1)
        own = asked[-1]
        return own.train.gradient_checkpointing and {*own.model.offload} == {*EVERYTHING}

    config = RunConfig.model_validate({"model": model})
    found = remedy(config, Path(tiny_families["flux"]), fits)
    assert "train.gradient_checkpointing = true" in found
    assert ("model.offload" in found) == (len(offload) == 1)
    assert all({*own.model.offload} >= {*offload} for own in asked)
