"""Workers that come and leave at random, under settings at random: the serial loop's weights."""

from collections.abc import Callable
from copy import deepcopy
from random import Random

import pytest

from digen_core.config.run import RunConfig
from support.random_settings import check_weights, draw, single_workers, workers_of
from support.runs import merged, only_run
from support.stories import Addition, nth_of_work

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MOST = 40  # events of a run's work until the last of it is under way
RESOURCES = ({"rollout": 1}, {"trainer": 1}, {"rollout": 1, "trainer": 1})


class Changing(Addition):
    """A worker comes, and another one is asked to leave."""

    def __init__(
        self, comes: Callable[[object], bool], resources: dict, leaves: Callable[[object], bool]
    ) -> None:
        super().__init__(comes, resources)
        self.leaves = leaves
        self.name = ""  # of who is to leave
        self.is_asked = False

    def see(self, what: object) -> None:
        from tasks.cluster.leaving import ask_to_leave

        super().see(what)
        if not self.is_asked and self.leaves(what):
            self.is_asked = True
            ask_to_leave(self.run_context.client, self.run_context.fleet.addresses[self.name])


@pytest.mark.parametrize("seed", range(200, 216))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, prefect_backend, follow):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    drawn, random = draw(seed, tree, tiny_families, single_workers), Random(seed)
    cluster, names = workers_of(drawn.case)
    places = random.randrange(1, MOST), random.randrange(1, MOST)
    comes, leaves = map(nth_of_work, places)
    story = Changing(comes, random.choice(RESOURCES), leaves)
    story.name = random.choice(names)
    follow(story)
    settings = {**drawn.case.changes, **drawn.changes, **cluster}
    settings["evaluation.samples_per_prompt"] = 1
    config = RunConfig.model_validate(merged(tree, deepcopy(settings)))
    try:
        with watching(story), listening(story.see):
            post_train(config)
        assert story.is_done, "nobody came"
        assert story.is_asked, "nobody was asked to leave"
        check_weights(drawn, config, only_run(tree))
    except Exception as error:
        error.add_note(
            f"{drawn}; {story.resources} comes, {story.name} is asked to leave at events {places}"
        )
        raise
