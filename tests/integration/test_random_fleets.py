"""Workers that come and leave at random, under settings at random: the serial loop's weights.

Devices are single workers, or gangs of two, which come and leave whole.
"""

from collections.abc import Sequence
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
from support.stories import Addition, nth_of_work

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MOST = 40  # events of a run's work until the last of it is under way
RESOURCES = ({"rollout": 1}, {"trainer": 1}, {"rollout": 1, "trainer": 1})


class Changing(Addition):
    """A device comes, and another one is asked to leave."""

    def __init__(
        self, places: Sequence[int], resources: dict[str, int], num_members: int, name: str
    ) -> None:
        """Prepare.

        Args:
            places: of the events at which it comes, and the other one is asked.
            resources: of who comes.
            num_members: of who comes.
            name: of who is to leave.
        """
        comes, self.leaves = map(nth_of_work, places)
        super().__init__(comes, resources, num_members)
        self.name = name
        self.is_asked = False

    def see(self, what: object) -> None:
        from tasks.cluster.leaving import ask_to_leave

        super().see(what)
        if not self.is_asked and self.leaves(what):
            self.is_asked = True
            ask_to_leave(self.run_context.client, self.run_context.fleet.addresses[self.name])


@pytest.mark.parametrize(
    ("seed", "case_of"),
    [
        *((seed, single_workers) for seed in range(200, 216)),
        *((seed, gangs_of_two) for seed in range(300, 312)),
    ],
)
def test_weights_are_those_of_the_serial_loop(
    seed, case_of, tree, tiny_families, prefect_backend, follow
):
    drawn, random = draw(seed, tree, tiny_families, case_of), Random(seed)
    places = random.randrange(1, MOST), random.randrange(1, MOST)
    resources, name = random.choice(RESOURCES), random.choice(workers_of(drawn.case)[1])
    num_members = drawn.case.devices[0].size
    story = Changing(places, resources, num_members, name)
    follow(story)
    with noting(drawn, places, resources, name):
        train_through(story, drawn, tree)
        assert story.is_asked, "nobody was asked to leave"
