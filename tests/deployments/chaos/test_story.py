"""Stories are drawn from their seed and number alone."""

import pytest

from deployments.chaos.outcome import Order
from deployments.chaos.story import (
    DISK,
    FLOW,
    ITS_DEVICE,
    KINDS,
    PHASES,
    POINTS,
    PREFECT,
    SERVICES,
    draw,
    workers_of,
)
from deployments.shipped import shipped_configs
from digen_core.config.load import load_config


@pytest.fixture(scope="module")
def config():
    return load_config(shipped_configs()["chaos"])


def test_a_story_is_the_same_whatever_is_drawn_beside_it(config):
    assert draw(3, 7, config) == draw(3, 7, config)
    stories = {str(draw(seed, number, config)) for seed in (0, 1) for number in range(50)}
    assert len(stories) > 90


def test_stories_have_faults_of_all_kinds_at_all_points(config):
    faults = [fault for number in range(600) for fault in draw(0, number, config).faults]
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.moment.point for fault in faults} == {*POINTS, *PHASES}
    targets = {name for fault in faults for name in fault.targets}
    assert targets == {*workers_of(config), FLOW, PREFECT, DISK, ITS_DEVICE}
    assert any(len(fault.targets) > 1 for fault in faults)  # a whole host


def test_faults_come_in_the_run(config):
    for number in range(300):
        for fault in draw(5, number, config).faults:
            moment = fault.moment
            assert moment.iteration < config.num_iterations
            assert (moment.iteration < 0) == (moment.point in PHASES)
            assert (fault.kind in ("kill", "freeze", "flip", "remove")) == (fault.seconds == 0)
            assert fault.kind != "freeze" or FLOW not in fault.targets, "nobody would notice"


def test_only_what_is_asked_for_is_drawn(config):
    drawn = [draw(0, number, config, ["pause", "cut"]) for number in range(40)]
    assert {fault.kind for story in drawn for fault in story.faults} == {"pause", "cut"}


def test_services_are_struck_where_there_are_some(config):
    faults = [f for n in range(300) for f in draw(0, n, config, services=[*SERVICES]).faults]
    struck = {name: {f.kind for f in faults if name in f.targets} for name in SERVICES}
    assert set(map(frozenset, struck.values())) == {frozenset({"kill", "pause", "slow", "cut"})}
    assert not [
        n for n in range(99) for f in draw(0, n, config).faults if {*f.targets} & {*SERVICES}
    ]


def test_an_order_is_read_as_it_was_written(config):
    order = Order(
        story=draw(1, 2, config),
        arguments=("chaos",),
        config=config,
        services=("mlflow",),
        is_isolated=True,
        limit_seconds=9.0,
    )
    assert Order.model_validate_json(order.model_dump_json()) == order


def test_workers_are_those_that_a_run_starts(config):
    names = workers_of(config)
    assert names == ["rollout-0", "rollout-1", "trainer-0", "trainer-1", "judges-0"]
    cluster = config.cluster.model_copy(update={"trainer_gang": 2, "reward_workers": {}})
    gangs = config.model_copy(update={"cluster": cluster})
    assert workers_of(gangs)[2:] == ["trainer-0", "trainer-0.1", "trainer-1", "trainer-1.1"]
