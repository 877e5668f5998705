"""Small jobs to plan, and counts of memory that are taken once."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device
from digen_core.gang.members import Gang
from digen_core.planning import memory_count, planner, search
from digen_core.planning.job import Job
from digen_core.sim.deal import BOTH
from support.families import MODELS, family_of

FAST = DeviceCosts(
    step=Linear(fixed=0.1, per_item=0.2),
    decode=Linear(per_item=0.1),
    pack=Linear(fixed=0.5, per_item=0.3),
)


def with_more_blocks(source: Path, out: Path, family: str, number: int) -> Path:
    """Copy a model's settings, with so many blocks in each list of its transformers."""
    keys = FAMILIES[family_of(family)].blocks.values()
    parts = sorted(path.parent for path in source.glob("transformer*/config.json"))
    for part in (*parts, source / "vae"):
        (out / part.name).mkdir()
        settings = json.loads((part / "config.json").read_text())
        settings |= {key: number for key in keys if key in settings}
        (out / part.name / "config.json").write_text(json.dumps(settings))
    shutil.copy(source / "model_index.json", out)
    return out


TRAINED_ON_MORE_BLOCKS = [
    pytest.param(
        model,
        train,
        marks=[] if model == "flux" and "lora" in train else [pytest.mark.families],
    )
    for model in MODELS
    for train in ({"gradient_checkpointing": True}, {"lora": None})
]
"""Models of more blocks and how they are trained: what a few of the blocks tell of all."""


def config(**tree: Any) -> RunConfig:
    rollout = {"prompts_per_iteration": 4, "group_size": 4, "fragment_size": 2, "num_steps": 4}
    return RunConfig.model_validate({"rollout": rollout, "train": {"pack_size": 4}} | tree)


def free_devices(num_devices: int) -> tuple[Device, ...]:
    return tuple(Device(f"d{index}", BOTH) for index in range(num_devices))


def job(num_devices: int = 4, costs: DeviceCosts = FAST, **others: Any) -> Job:
    known = Costs(kinds={"default": costs}, **{"optimizer_step": 0.5, "push": 0.5} | others)
    return Job.of(config(), free_devices(num_devices), known)


@pytest.fixture(scope="module")
def counted_once() -> Iterator[None]:
    """Memory that is counted again for the same config, folder and gang is what it was.

    A count takes about a second, and the tests of a module ask for the same ones.
    """
    count, known = memory_count._counted, {}

    def counted(config: RunConfig, folder: Path, gang: Gang, computes: Any) -> Any:
        key = config.model_dump_json(), folder, gang.size, gang.rank, computes
        if key not in known:
            known[key] = count(config, folder, gang, computes)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_count, "_counted", counted)
        yield


@pytest.fixture(scope="module")
def simulated_once() -> Iterator[None]:
    """What is simulated again, of the same job and choice with the same seed, is what it was.

    The tests of a module plan for the same few clusters.
    """
    simulate, known = search.simulate_choice, {}

    def simulated(problem: Any, choice: Any, **settings: Any) -> Any:
        key = repr((problem, choice, settings))
        if key not in known:
            known[key] = simulate(problem, choice, **settings)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "simulate_choice", simulated)
        patch.setattr(planner, "simulate_choice", simulated)
        yield
