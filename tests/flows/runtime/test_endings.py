"""The ends of iterations: records are published in order, and none after one that was not."""

import weakref
from threading import Thread
from time import sleep

import pytest

from flows.runtime.iterations import endings
from flows.runtime.iterations.endings import Endings
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.round import Ended, Round

ENDED = Ended(version=1, seconds=1.0)


@pytest.fixture
def iterations():
    return [OpenIteration(Round(index, []), None, 1) for index in range(3)]


@pytest.fixture
def ending(iterations):
    ending = Endings()
    for opened in iterations:
        ending.add(opened, ENDED)
    return ending


def outcomes(iterations):
    return [opened.outcome.done() and opened.outcome.result() for opened in iterations]


def publish(opened):
    with opened.publishing():
        pass


def fail_to_publish(opened):
    with pytest.raises(OSError, match="full"), opened.publishing():
        raise OSError("the disk is full")


def test_each_waits_until_the_one_before_is_published(ending, iterations):
    for num_ended, opened in enumerate(iterations, start=1):
        for _ in range(2):
            ending.end(lambda opened: False, at_once=True)
            assert outcomes(iterations) == [ENDED] * num_ended + [False] * (3 - num_ended)
        publish(opened)
    assert not ending


def test_none_ends_before_one_of_which_a_task_runs(ending, iterations, monkeypatch):
    monkeypatch.setattr(endings, "SETTLE_SECONDS", 0.0)
    ending.end(lambda opened: opened.index == 0, at_once=False)
    assert outcomes(iterations) == [False, False, False]
    ending.end(lambda opened: False, at_once=False)
    assert outcomes(iterations) == [ENDED, False, False]


def test_what_an_iteration_made_is_let_go_of_when_it_has_ended(iterations):
    ending, opened = Endings(), iterations.pop()
    made = weakref.ref(opened)
    ending.add(opened, ENDED)
    ending.end(lambda opened: False, at_once=True)
    del opened
    assert made() is None


def test_none_ends_before_it_has_settled(ending, iterations):
    ending.end(lambda opened: False, at_once=False)
    assert outcomes(iterations) == [False, False, False]


def test_none_is_published_after_one_that_was_not(ending, iterations):
    ending.end(lambda opened: False, at_once=True)
    fail_to_publish(iterations[0])
    ending.end(lambda opened: False, at_once=True)
    assert outcomes(iterations) == [ENDED, False, False]
    ending.end_all()
    assert outcomes(iterations) == [ENDED, None, None]
    assert not ending


def test_all_that_are_over_are_published_in_order_when_the_run_ends(ending, iterations):
    published = []

    def follow():
        for opened in iterations:
            opened.outcome.result()
            assert outcomes(iterations).count(ENDED) == len(published) + 1
            sleep(0.05)  # a record takes its time
            published.append(opened.index)
            publish(opened)

    Thread(target=follow, daemon=True).start()
    ending.end_all()
    assert published == [0, 1, 2]
    assert not ending
