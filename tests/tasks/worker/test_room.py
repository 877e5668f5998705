"""A device that cannot hold a recipe is told before anything is loaded, with what to change."""

from pathlib import Path

import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.gang.members import Gang
from digen_core.planning.memory_count import memory_of
from support.planning import counted_once
from support.tiny_policies import TINY
from tasks.worker import engine as engine_module
from tasks.worker import room
from tasks.worker.engine import build_engine

__all__ = ["counted_once"]
pytestmark = pytest.mark.usefixtures("counted_once")
BOTH = frozenset({"rollout", "trainer"})


@pytest.fixture
def config(tiny_flux) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": tiny_flux, "device": "cpu", **TINY},
            "rollout": {"group_size": 4, "num_steps": 3},
        }
    )


@pytest.fixture
def loaded(monkeypatch) -> list:
    """What is loaded, of nothing that does not fit."""
    found, load = [], engine_module.load_trainable
    monkeypatch.setattr(engine_module, "_engines", {})
    monkeypatch.setattr(
        engine_module, "load_trainable", lambda *own: found.append(own) or load(*own)
    )
    return found


@pytest.mark.parametrize("roles", [{"rollout"}, {"trainer"}, BOTH])
def test_the_least_of_a_devices_work_has_to_fit(config, tiny_flux, roles, monkeypatch, loaded):
    found = memory_of(config, Path(tiny_flux))
    alone = {"rollout": found.rollout(1), "trainer": found.trainer(1)}
    assert found.both(1, 1) > max(alone.values()), "what it trains stays while it generates"
    least = found.both(1, 1) if roles == BOTH else alone[min(roles)]
    monkeypatch.setattr(room, "bytes_of", lambda device: least)
    build_engine("run-1", config, "gpu-0", frozenset(roles))
    assert len(loaded) == 1
    monkeypatch.setattr(room, "bytes_of", lambda device: least - 1)
    told = "to do both in turn" if roles == BOTH else "one (sample|pair)"
    with pytest.raises(UserError, match=rf"gpu-0, of 2 GB, lacks the memory .* {told}; .* less"):
        build_engine("run-2", config, "gpu-0", frozenset(roles))
    assert len(loaded) == 1


def test_no_more_is_counted_than_the_least(config, monkeypatch, loaded):
    """Of a plan's packs, of 48 pairs in 16 portions, a stage of 22 blocks took two minutes."""
    asked = []

    def counted(own, *where):
        asked.append((own.fragment_size, own.train.pack_size))
        return memory_of(own, *where)

    monkeypatch.setattr(room, "bytes_of", lambda device: 1 << 50)
    monkeypatch.setattr(room, "memory_of", counted)
    assert (config.fragment_size, config.train.pack_size) > (1, 1)
    build_engine("run-1", config, "gpu-0", BOTH)
    assert asked == [(1, 1)]


def test_what_cannot_be_counted_is_no_reason_to_stop(config, monkeypatch, loaded, caplog):
    def uncountable(*arguments):
        raise NotImplementedError("no shape for this")

    monkeypatch.setattr(room, "bytes_of", lambda device: 1)
    monkeypatch.setattr(room, "memory_of", uncountable)
    build_engine("run-1", config, "gpu-0", BOTH)
    assert len(loaded) == 1
    assert "what gpu-0 needs could not be counted: no shape for this" in caplog.text


def test_a_cpu_is_not_looked_at(config, monkeypatch, loaded):
    monkeypatch.setattr(room, "memory_of", lambda *arguments: pytest.fail("counted"))
    build_engine("run-1", config, "cpu-0", BOTH)
    assert room.bytes_of(torch.device("cpu")) is None


def test_a_model_whose_settings_are_elsewhere_is_not_looked_at(config, monkeypatch):
    monkeypatch.setattr(room, "bytes_of", lambda device: 1)
    model = config.model.model_copy(update={"path": "somebody/model"})
    room.require_room(config.model_copy(update={"model": model}), "gpu-0", BOTH)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_of_a_gang_is_named_and_counted_for_itself(config, tiny_flux, rank, monkeypatch):
    parallel = {"stages": 2, "stage_blocks": (1, 1)}
    config = config.model_copy(update={"parallel": config.parallel.model_copy(update=parallel)})
    found = memory_of(config, Path(tiny_flux), 2, rank)
    gang = Gang(rank=rank, size=2, stages=2, stage_blocks=(1, 1))
    monkeypatch.setattr(room, "bytes_of", lambda device: found.rollout(1))
    room.require_room(config, "room", {"rollout"}, gang)
    monkeypatch.setattr(room, "bytes_of", lambda device: found.rollout(1) - 1)
    name = "room" if rank == 0 else r"room\.1"
    with pytest.raises(UserError, match=rf"^{name}, of 2 GB, lacks .* parallel.stage_blocks may"):
        room.require_room(config, "room", {"rollout"}, gang)
