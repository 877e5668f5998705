"""Whose the core-seconds of an iteration were: parts that add up to the machine's."""

import threading
import time

import pytest

from deployments.bench import core_seconds as bench
from deployments.bench.core_seconds import BODIES, FLOW, IDLE, MLFLOW, per_iteration
from tasks.worker.span import body_cpu_seconds, span_on_receipt


def test_parts_by_hand():
    before, after = {BODIES: 10.0, FLOW: 1.0}, {BODIES: 16.0, FLOW: 1.5, MLFLOW: 0.5}
    measured = per_iteration(before, after, seconds=6.0, iterations=2, num_cores=2)
    assert measured.seconds == 3.0
    assert measured.parts == {BODIES: 3.0, FLOW: 0.25, MLFLOW: 0.25, IDLE: 2.5}
    assert measured.share(BODIES) == 0.5


def test_more_than_the_cores_have_leaves_nothing_idle():
    measured = per_iteration({}, {BODIES: 9.0}, seconds=4.0, iterations=1, num_cores=2)
    assert measured.parts[IDLE] == 0.0


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_threads_are_told_apart_by_their_names():
    done, burned = threading.Event(), threading.Event()

    def send() -> None:
        burn(0.3)
        burned.set()
        done.wait()

    before = bench._of_this_process()
    thread = threading.Thread(target=send, name="mlflow")
    thread.start()
    burned.wait()
    after = bench._of_this_process()
    done.set()
    thread.join()
    assert after[MLFLOW] - before[MLFLOW] == pytest.approx(0.3, abs=0.1)
    assert after[FLOW] - before[FLOW] < 0.2


def test_bodies_are_counted_in_their_thread():
    before = body_cpu_seconds()
    with span_on_receipt("a device"):
        burn(0.2)
        time.sleep(0.2)
    assert body_cpu_seconds() - before == pytest.approx(0.2, abs=0.05)
