"""Workers that are killed at random, under settings at random: the weights of the serial loop."""

from collections.abc import Callable
from copy import deepcopy
from itertools import count
from random import Random

import pytest

from digen_core.config.run import RunConfig
from digen_core.control import protocol as p
from support.random_settings import check_weights, draw, workers_of
from support.runs import merged, only_run
from support.stories import Story, signal_to

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

COUNTED = (
    *(p.BatchGenerated, p.FragmentScored, p.PackTrained, p.GradientReduced),
    *(p.Stepped, p.StateCopied, p.VersionLoaded),
)
MOST = 60  # of those, that a run of the job has


@pytest.mark.parametrize("seed", range(16))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, prefect_backend, follow):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    drawn, random = draw(seed, tree, tiny_families), Random(seed)
    cluster, names = workers_of(drawn.case)
    name, place = random.choice(names), random.randrange(3, MOST)
    story = Story(nth(place), signal_to(name))
    follow(story)
    settings = {**drawn.case.changes, **drawn.changes, **cluster}
    settings["evaluation.samples_per_prompt"] = 1
    config = RunConfig.model_validate(merged(tree, deepcopy(settings)))
    try:
        with watching(story), listening(story.see):
            post_train(config)
        assert story.is_done, "nobody was killed"
        check_weights(drawn, config, only_run(tree))
    except Exception as error:
        error.add_note(f"{drawn}; {name} is killed at event {place}")
        raise


def nth(place: int) -> Callable[[object], bool]:
    """Return what is true at an event of a run, as they are counted."""
    counter = count(1)
    return lambda what: isinstance(what, COUNTED) and next(counter) == place
