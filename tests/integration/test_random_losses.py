"""Workers that are killed or frozen at random, under settings at random: the serial loop's weights.

Devices are single workers, or gangs of two, of which one is enough to lose the device.
"""

import signal
from copy import deepcopy
from random import Random

import pytest

from digen_core.config.run import RunConfig
from support.random_settings import check_weights, draw, gangs_of_two, single_workers, workers_of
from support.runs import merged, only_run
from support.stories import Story, nth_of_work, signal_to

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MOST = 60  # events of a run's work
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("seed", "case_of"),
    [
        *((seed, single_workers) for seed in range(16)),
        *((seed, gangs_of_two) for seed in range(100, 112)),
    ],
)
def test_weights_are_those_of_the_serial_loop(
    seed, case_of, tree, tiny_families, prefect_backend, follow
):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    drawn, random = draw(seed, tree, tiny_families, case_of), Random(seed)
    cluster, names = workers_of(drawn.case)
    if case_of is gangs_of_two:
        names += [f"{name}.1" for name in names]
    name, place = random.choice(names), random.randrange(3, MOST)
    number = random.choice(SIGNALS)
    story = Story(nth_of_work(place), signal_to(name, number=number))
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
