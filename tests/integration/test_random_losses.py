"""Workers that are killed or frozen at random, under settings at random: the serial loop's weights.

Devices are single workers, or gangs of two, of which one is enough to lose the device.
"""

import signal
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import pytest

from digen_core.config.run import RunConfig
from digen_core.control import protocol as p
from digen_core.control.layout import LAYOUTS
from support.layout_runs import Case
from support.random_settings import check_weights, draw, how, workers_of
from support.runs import merged, only_run
from support.stories import Story, signal_to

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

COUNTED = (
    *(p.BatchGenerated, p.FragmentScored, p.PackTrained, p.GradientReduced),
    *(p.Stepped, p.StateCopied, p.VersionLoaded),
)
MOST = 60  # of those, that a run of the job has
TOKENS = {"parallel.context_parallel": 2}
SHARDS = {"parallel.shard_weights": True}
SHARED = ({}, TOKENS, SHARDS, TOKENS | SHARDS, {"parallel.stages": 2})
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True)
class GangsOfTwo(Case):
    """A layout on gangs of two, which the run starts."""

    settings: dict = field(default_factory=dict)

    @property
    def changes(self) -> dict:
        gangs = {"cluster.rollout_gang": 2, "cluster.trainer_gang": 2}
        return super().changes | gangs | self.settings

    @property
    def devices(self) -> list[p.Device]:
        return [replace(device, size=2) for device in super().devices]


def draw_gangs(random: Random) -> GangsOfTwo:
    layout = random.choice(list(LAYOUTS))
    splits = [(2,)] if LAYOUTS[layout].colocated else [(1, 1), (1, 2), (2, 1)]
    settings = random.choice(SHARED)
    return GangsOfTwo(layout, random.choice(splits), settings=settings, **how(random, layout))


@pytest.mark.parametrize(
    ("seed", "case_of"),
    [*((seed, None) for seed in range(16)), *((seed, draw_gangs) for seed in range(100, 112))],
)
def test_weights_are_those_of_the_serial_loop(
    seed, case_of, tree, tiny_families, prefect_backend, follow
):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    drawn, random = draw(seed, tree, tiny_families, case_of), Random(seed)
    cluster, names = workers_of(drawn.case)
    if case_of:
        names += [f"{name}.1" for name in names]
    name, place = random.choice(names), random.randrange(3, MOST)
    number = random.choice(SIGNALS)
    story = Story(nth(place), signal_to(name, number=number))
    follow(story)
    settings = {**drawn.case.changes, **drawn.changes, **cluster}
    settings |= {"evaluation.samples_per_prompt": 1, "cluster.heartbeat_timeout": 5}
    config = RunConfig.model_validate(merged(tree, deepcopy(settings)))
    try:
        with watching(story), listening(story.see):
            post_train(config)
        assert story.is_done, "nobody was lost"
        check_weights(drawn, config, only_run(tree))
    except Exception as error:
        error.add_note(f"{drawn}; {name} gets {number.name} at event {place}")
        raise


def nth(place: int) -> Callable[[object], bool]:
    """Return what is true at an event of a run, as they are counted."""
    counter = count(1)
    return lambda what: isinstance(what, COUNTED) and next(counter) == place
