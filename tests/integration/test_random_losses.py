"""Workers that are killed or frozen at random, under settings at random: the serial loop's weights.

Devices are single workers, or gangs of two, of which one is enough to lose the device.
"""

import signal
from random import Random

import pytest

from support.random_settings import (
    draw,
    gangs_of_two,
    noting,
    single_workers,
    train_through,
    workers_of,
)
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
    drawn, random = draw(seed, tree, tiny_families, case_of), Random(seed)
    names = workers_of(drawn.case)[1]
    if case_of is gangs_of_two:
        names += [f"{name}.1" for name in names]
    name, place = random.choice(names), random.randrange(3, MOST)
    number = random.choice(SIGNALS)
    story = Story(nth_of_work(place), signal_to(name, number=number))
    follow(story)
    with noting(drawn, name, number.name, place):
        train_through(story, drawn, tree)
