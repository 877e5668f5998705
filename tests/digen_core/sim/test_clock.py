"""Virtual time and jitter."""

import numpy as np
import pytest

from digen_core.sim.clock import Clock, Jitter


def test_actions_come_in_the_order_of_time_then_of_setting():
    clock, done = Clock(), []
    clock.at(2.0, lambda: done.append(("late", clock.now)))
    clock.at(1.0, lambda: done.append(("first", clock.now)))
    clock.at(1.0, lambda: clock.after(0.0, lambda: done.append(("after", clock.now))))
    clock.at(1.0, lambda: done.append(("second", clock.now)))
    clock.at(1.5, lambda: done.append(("never", clock.now))).cancel()
    while clock.advance():
        pass
    assert done == [("first", 1.0), ("second", 1.0), ("after", 1.0), ("late", 2.0)]
    assert clock.now == 2.0


def test_jitter_has_mean_1_and_its_sigma():
    factors = Jitter(0.3, seed=1).factors(200_000)
    assert factors.mean() == pytest.approx(1.0, abs=0.003)
    assert np.log(factors).std() == pytest.approx(0.3, abs=0.003)


def test_no_jitter_is_exactly_1():
    jitter = Jitter(0.0, seed=1)
    assert jitter() == 1.0
    assert jitter.factors(3).tolist() == [1.0, 1.0, 1.0]


def test_choices_are_in_order_and_depend_on_the_seed():
    chosen = {Jitter(0.0, seed).choose(3, 10) for seed in range(20)}
    assert all(len(set(some)) == 3 and list(some) == sorted(some) for some in chosen)
    assert {sample for some in chosen for sample in some} == set(range(10))
