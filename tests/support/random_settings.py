"""Settings at random, as many as go together, of a small job under a random layout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.data.prompts import prompts_with_steps
from digen_core.errors import ConfigError
from digen_core.gang.degrees import check_degree, check_stages
from digen_core.inputs.weight_files import shapes_in_folder
from digen_core.models.image_size import read_settings
from digen_core.planning.model_settings import settings_folder
from digen_core.preflight.gangs import check_targets_of_stages
from support.families import HEIGHT, OF_KIND, TOKENS, WIDTH, family_of, tolerance_of
from support.gang_runs import SHARED, GangsOfTwo
from support.layout_runs import JOB, RELATIVE, Case
from support.random_options import ALGORITHMS, ANY, EXPERTS, Options
from support.runs import TOLERANCE, distance, merged, only_run, reference, with_own_steps
from support.stories import Story

NUM_TRIED = 16  # options, of which a config takes those that go with the others
SHARE_OF_OWN_STEPS = 0.2
OWN_STEPS = (5, 4, None, 4, 5)
MODELS = (*["flux"] * 4, "flux2", "sd3", "qwen_image", "z_image", "sana", "wan", "wan-a14b")


@dataclass(frozen=True)
class Drawn:
    """A case, and what it changes in a config."""

    model: str
    case: Case
    changes: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.model}, {self.case}, {self.changes}"


def draw(
    seed: int,
    tree: dict[str, Any],
    folders: dict[str, str],
    case_of: Callable[[Random], Case],
) -> Drawn:
    """Return settings that a config takes.

    Args:
        seed: of what is drawn.
        tree: the config that is changed.
        folders: of tiny models, by name.
        case_of: draws a layout and devices.
    """
    random = Random(seed)
    model = random.choice(MODELS)
    changes = {**_job(), **_of_model(model, folders[model])}
    if random.random() < SHARE_OF_OWN_STEPS:
        own = with_own_steps(tree, OWN_STEPS)["prompts"]
        changes |= {f"prompts.{key}": own[key] for key in ("train", "steps_column")}
    while True:
        case = case_of(random)
        algorithm, options = _algorithm(random)
        begun = {**changes, "rollout.num_steps": 5, "algorithm": algorithm}
        if is_valid(tree, case, begun):
            break
    options |= EXPERTS if "model.guidance_scale_2" in changes else {}
    for key in random.sample(sorted(options), NUM_TRIED):
        more = {**begun, key: random.choice(options[key])}
        if is_valid(tree, case, more):
            begun = more
    return Drawn(model, case, begun)


def forget_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the job's algorithm away: its keys come before the one drawn, which replaces all."""
    for key in [key for key in JOB if key.startswith("algorithm.")]:
        monkeypatch.delitem(JOB, key)


@contextmanager
def noting(*what: object) -> Iterator[None]:
    """Say, if the body fails, what was drawn."""
    try:
        yield
    except Exception as error:
        error.add_note("; ".join(map(str, what)))
        raise


def train_through(story: Story, drawn: Drawn, tree: dict[str, Any]) -> None:
    """Run what was drawn, on workers of its own, through a story, and compare its weights."""
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    settings = {"evaluation.samples_per_prompt": 1, "cluster.heartbeat_timeout": 5}
    config = config_of(tree, drawn.case, drawn.changes | settings)
    with watching(story), listening(story.see):
        post_train(config)
    assert story.is_done, "nothing was done to the run"
    check_weights(drawn, config, only_run(tree))


def config_of(tree: dict[str, Any], case: Case, changes: dict[str, Any]) -> RunConfig:
    """Return the config of a run that starts the workers of a case."""
    settings = {**case.changes, **changes, **workers_of(case)[0]}
    return RunConfig.model_validate(merged(tree, deepcopy(settings)))


def workers_of(case: Case) -> tuple[dict[str, int], list[str]]:
    """Return settings by which as many workers are started as a case has, and their names."""
    keys = ("cluster.rollout_workers", "cluster.trainer_workers")
    if LAYOUTS[case.layout].colocated:
        (number,) = case.workers
        counts, names = (number - 1, 1), [f"worker-{i}" for i in range(number)]
    else:
        rollouts, trainers = counts = (case.workers[0], case.workers[1])
        names = [f"rollout-{i}" for i in range(rollouts)]
        names += [f"trainer-{i}" for i in range(trainers)]
    return dict(zip(keys, counts, strict=True)), names


def check_weights(drawn: Drawn, config: RunConfig, folder: Path) -> None:
    """Compare what a run left with the serial loop that generates with the run's versions."""
    from digen_core.checkpoints.tensors import last_state
    from digen_core.transport.samples import read_samples

    rows = read_samples(folder / "samples").to_pylist()
    versions = {(row["iteration"], row["group"]): row["policy_version"] for row in rows}
    for (iteration, group), version in list(versions.items()):
        if config.rollout.screens(group):  # candidates with rows, of which no samples were chosen
            versions[iteration, group + config.rollout.prompts_per_iteration] = version
    serial = reference(config, version_of=lambda *group: versions[group])
    state = last_state(folder)
    bound = max(TOLERANCE[config.model.dtype], tolerance_of(drawn.model))
    assert distance(state.weights, serial.weights) < bound
    assert distance(state.ema, serial.ema) < bound


def _job() -> dict[str, Any]:
    """Return the job of layouts, without an algorithm, in which rounding is no large step."""
    job = {key: value for key, value in JOB.items() if not key.startswith("algorithm.")}
    return job | {"train.adam_eps": 1e-3}


def _of_model(name: str, folder: str) -> dict[str, Any]:
    if name == "flux":
        return {}
    own = {"family": family_of(name), "path": folder, "height": HEIGHT, "width": WIDTH}
    own |= {"max_sequence_length": TOKENS, "guidance_scale": 3.0, **OF_KIND.get(name, {})}
    return {f"model.{key}": value for key, value in own.items()}


def how(random: Random, layout: LayoutName) -> dict[str, Any]:
    """Return how a case cuts and disturbs the work of a layout."""
    switches = LAYOUTS[layout]
    return {
        "fragment": random.choice([1, 2]),
        "pack": random.choice([1, 3, 8]),
        "helping": not switches.colocated and random.random() < 0.5,
        "pauses": random.random() < 0.5,
        "dtype": random.choice(["float64", "float64", "float32"]),
        "share": random.choice([None, 0.5, 1.0]) if switches.stale else None,
    }


def gangs_of_two(random: Random) -> GangsOfTwo:
    """Return a layout on gangs of two, which share their work in some way."""
    layout = random.choice(list(LAYOUTS))
    splits = [(2,)] if LAYOUTS[layout].colocated else [(1, 1), (1, 2), (2, 1)]
    settings = random.choice([*SHARED, {"parallel.stages": 2}])
    return GangsOfTwo(layout, random.choice(splits), settings=settings, **how(random, layout))


def single_workers(random: Random) -> Case:
    """Return a layout on single workers."""
    layout = random.choice(list(LAYOUTS))
    splits = [(2,), (3,)] if LAYOUTS[layout].colocated else [(1, 2), (2, 1), (2, 2)]
    return Case(layout, random.choice(splits), **how(random, layout))


def _algorithm(random: Random) -> tuple[dict[str, Any], Options]:
    """Return an algorithm, and what else there is to set."""
    name = random.choice(list(ALGORITHMS))
    needs, options = ALGORITHMS[name]
    bound = {"clip_range": 1e-4} if "algorithm.clip_range" in options else {}
    return {"type": name, **bound, **needs}, ANY | options


def is_valid(tree: dict[str, Any], case: Case, changes: dict[str, Any]) -> bool:
    """Say whether a config takes a case and changes, rewards its groups, and gangs its model."""
    of_four = changes["rewards"] is RELATIVE  # its rewards look at whole groups of JOB's size
    if of_four and "rollout.screening" in changes:
        return False
    if of_four and changes["rollout.group_size"] != JOB["rollout.group_size"]:
        return False
    try:
        config = RunConfig.model_validate(merged(tree, deepcopy({**case.changes, **changes})))
        prompts_with_steps(config)
        _check_gangs(config, {device.size for device in case.devices})
    except (ValidationError, ConfigError):
        return False
    return True


def _check_gangs(config: RunConfig, sizes: set[int]) -> None:
    """Check that gangs of some sizes can share a config's model."""
    settings = read_settings(settings_folder(config.model.path))
    check_stages(config, *sizes, transformer=settings[1])
    for size in sizes:
        check_degree(config, size, settings)
    if config.parallel.has_stages:
        check_targets_of_stages(config, shapes_in_folder(Path(config.model.path) / "transformer"))
