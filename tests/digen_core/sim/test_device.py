"""A simulated device, by hand: steps of 1 s, decoding 0.5 s, packs of 2 pairs 3 s."""

import pytest

from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import (
    Device,
    Fragment,
    Generate,
    Pack,
    PairBlock,
    Step,
    Switch,
    Train,
)
from digen_core.sim.clock import Clock, Jitter
from digen_core.sim.device import SimulatedDevice
from digen_core.sim.ledger import SimulationError
from support.batches import alone

FRAGMENT = Fragment(0, 0, 0, 0, 1, num_steps=4)
OTHER = Fragment(0, 0, 1, 1, 1, num_steps=4)
COSTS = Costs(
    kinds={
        "slow": DeviceCosts(
            step=Linear(fixed=0.25, per_item=0.75),
            decode=Linear(per_item=0.5),
            pack=Linear(fixed=1.0, per_item=1.0),
        )
    },
    optimizer_step=0.25,
    switch_to_rollout=2.0,
    switch_to_trainer=4.0,
)


class Bench:
    """A device, its clock, and what it has done: (what, end step, started, ended)."""

    def __init__(self, jitter=0.0):
        self.clock, self.done = Clock(), []
        self.device = SimulatedDevice(
            Device("gpu", frozenset({"rollout"}), "slow"),
            COSTS,
            self.clock,
            Jitter(jitter, 0),
            done=lambda task: self.done.append(
                (type(task.do).__name__, task.end_step, task.started, self.clock.now)
            ),
        )

    def run(self, *instructions):
        for do in instructions:
            self.device.enqueue(do)
        while self.clock.advance():
            pass
        return self.done


def generate(fragment=FRAGMENT, first=0, end=4):
    return Generate(alone(fragment), first, end, 0, "gpu")


def test_one_thing_after_the_other():
    pack = Pack(0, 0, (PairBlock(FRAGMENT, 0, 0, 1), PairBlock(OTHER, 0, 0, 1)))
    assert Bench().run(
        generate(), Switch("gpu", "trainer"), Train(pack, 0, "gpu"), Step(0, 0, "gpu"),
        Switch("gpu", "rollout"), generate(first=2),
    ) == [
        ("Generate", 4, 0.0, 4.5),
        ("Switch", -1, 4.5, 8.5),
        ("Train", -1, 8.5, 11.5),
        ("Step", -1, 11.5, 11.75),
        ("Switch", -1, 11.75, 13.75),
        ("Generate", 4, 13.75, 16.25),
    ]  # fmt: skip


def test_a_stretch_that_does_not_reach_the_last_step_is_not_decoded():
    assert Bench().run(generate(first=1, end=3)) == [("Generate", 3, 0.0, 2.0)]


@pytest.mark.parametrize(
    ("time", "end_step", "ended"),
    [(0.5, 1, 1.0), (1.0, 2, 2.0), (2.9, 3, 3.0), (3.1, 4, 4.5), (4.2, 4, 4.5)],
)
def test_a_pause_ends_after_the_step_that_is_running(time, end_step, ended):
    bench = Bench()
    bench.clock.at(time, lambda: bench.device.pause(alone(FRAGMENT)))
    assert bench.run(generate(), generate(OTHER))[0] == ("Generate", end_step, 0.0, ended)
    assert bench.done[1] == ("Generate", 4, ended, ended + 4.5)


def test_a_fragment_that_has_not_begun_is_taken_back_at_once():
    bench = Bench()
    taken = []
    bench.clock.at(0.5, lambda: taken.append(bench.device.pause(alone(OTHER))))
    assert bench.run(generate(), generate(OTHER, first=2)) == [("Generate", 4, 0.0, 4.5)]
    assert taken == [2]


def test_only_what_it_was_told_to_generate_can_be_paused():
    bench = Bench()
    bench.device.enqueue(generate())
    with pytest.raises(SimulationError, match="gpu does not generate Batch"):
        bench.device.pause(alone(OTHER))


def test_a_device_that_stops_does_nothing_any_more():
    bench = Bench()
    bench.clock.at(1.0, bench.device.stop)
    assert bench.run(generate(), generate(OTHER)) == []


def test_jitter_is_drawn_for_each_step():
    bench = Bench(jitter=0.2)
    steps = Jitter(0.2, 0)
    ends = steps.factors(4).cumsum()
    bench.clock.at(float(ends[1]) + 1e-9, lambda: bench.device.pause(alone(FRAGMENT)))
    assert bench.run(generate()) == [("Generate", 3, 0.0, pytest.approx(ends[2]))]
