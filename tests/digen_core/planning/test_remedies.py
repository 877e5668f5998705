"""What would make a recipe fit: settings, and the gangs that are left where none is enough."""

import tomllib
from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from digen_core.planning import remedies
from digen_core.planning.remedies import remedy
from digen_core.preflight.gangs import check_gangs
from support.runs import merged

EVERYTHING = ["text_encoders", "vae", "transformer"]
CUT = {"block": 1, "forward": "int8", "backward": "int8"}


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
    offload = "model.offload = ['text_encoders', 'vae']"  # shards stay on their devices
    assert found == f"{keys} and {offload} in gangs of 4 (the devices' gang)"
    assert 8 not in asked


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.offload": EVERYTHING},
        {"rollout.cuda_graphs": True},
        {"parallel.stages": 2},
        {"parallel.stages": 2, "parallel.stage_blocks": [1, 1], "model.cuts": [CUT]},
    ],
)
@pytest.mark.parametrize("needs_all", [False, True])
def test_a_run_takes_what_is_named(tiny_families, settings, needs_all, monkeypatch):
    """The gang alone, and with all that may be changed beside it."""
    folder, asked = tiny_families["flux"], list[RunConfig]()
    monkeypatch.setattr(remedies, "memory_of", lambda config, *_, **__: asked.append(config))

    def fits(memory_in, size) -> bool:
        memory_in(1)
        return size == 4 and (asked[-1].train.gradient_checkpointing or not needs_all)

    tree = {"model": {"family": "flux", "path": folder, "height": 64, "width": 64}}
    config = RunConfig.model_validate(merged(tree, settings))
    found = remedy(config, Path(folder), fits)
    keys = tomllib.loads(found.partition(" in gangs of 4")[0].replace(" and ", "\n"))
    named = {f"{table}.{key}": value for table in keys for key, value in keys[table].items()}
    gangs = {"cluster.rollout_gang": 4, "cluster.trainer_gang": 4}
    taken = RunConfig.model_validate(merged(tree, settings | named | gangs))
    check_gangs(taken)
    assert (taken.model, taken.train) == (asked[-1].model, asked[-1].train)
    assert taken.parallel == asked[-1].parallel


def test_shards_stay_on_their_devices(tiny_families, monkeypatch):
    asked = list[RunConfig]()
    monkeypatch.setattr(remedies, "memory_of", lambda config, *_, **__: asked.append(config))
    tree = {"model": {"height": 64, "width": 64}, "parallel": {"shard_weights": True}}
    folder = Path(tiny_families["flux"])
    assert remedy(RunConfig.model_validate(tree), folder, lambda own, _: own(1)) is None
    assert {own.model.offload for own in asked} == {("text_encoders",), ("text_encoders", "vae")}


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
