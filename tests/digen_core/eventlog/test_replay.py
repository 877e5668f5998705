"""Logs of random orders and of the simulator replay; what was changed in one is found."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from digen_core.control.state import ControllerError
from digen_core.eventlog.file import read_log, write_log
from digen_core.eventlog.recorder import KEPT_SEGMENTS, Recorder
from digen_core.eventlog.replay import replay
from digen_core.sim.clock import Jitter
from digen_core.sim.simulation import Simulation
from support.random_cluster import make_costs, make_devices, make_workload
from support.recorded import recorded


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("most", [1, 37, 10**9])
def test_random_orders_replay(layout, most, tmp_path):
    for seed in range(3):
        log = recorded(layout, seed, most=most).log("a-run", "it was asked")
        write_log(tmp_path, log)
        assert read_log(tmp_path) == log
        replayed = replay(log)
        assert replayed.difference is None
        assert replayed.num_events == sum(len(segment.handled) for segment in log.segments)


class Checked(Recorder):
    """A recorder that checks its controller after each event."""

    def handle(self, event):
        instructions = super().handle(event)
        self._controller.validate()
        return instructions


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_simulator_replays(layout):
    devices, workload = make_devices(layout, 3, 2), make_workload(num_groups=6)
    schedule, costs = Schedule(LAYOUTS[layout], queue_depth=2), make_costs(0.3)
    it = Checked(Controller(devices, workload, schedule, costs))
    simulation = Simulation(it, devices, workload, schedule, costs, (0, 2), Jitter(0.3, 1))
    simulation.lose(2.0, devices[1].name)
    simulation.join(4.0, devices[1])
    simulation.run(4)
    replayed = replay(it.log("a-simulation", "it ended"))
    assert replayed.difference is None
    assert replayed.num_events > 30  # of two iterations


def test_a_log_is_bounded_however_long_the_run_is():
    short, long = (recorded(num_iterations=n, losses=0).log("a-run", "") for n in (3, 12))
    assert len(short.segments) == len(long.segments) == KEPT_SEGMENTS
    num_short, num_long = (sum(len(part.handled) for part in log.segments) for log in (short, long))
    assert num_long < 2 * num_short
    assert long.segments[0].mark.snapshot.version >= 8


def test_an_iteration_that_is_too_long_is_cut():
    log = recorded(most=33, most_events=5).log("a-run", "")
    assert all(len(segment.handled) <= 5 for segment in log.segments)
    assert replay(log).difference is None


@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_replays_it(seed, tmp_path):
    """Whose strings hash otherwise, so sets have another order."""
    write_log(tmp_path, recorded(seed=5).log("a-run", ""))
    code = """
import sys
from pathlib import Path
from digen_core.eventlog.file import read_log
from digen_core.eventlog.replay import replay
replayed = replay(read_log(Path(sys.argv[1])))
assert replayed.difference is None and replayed.num_events, replayed
"""
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)


def tampered(log, number: int, **changes):
    """Return the log with an entry of its last segment changed."""
    *others, last = log.segments
    handled = list(last.handled)
    handled[number] = replace(handled[number], **changes)
    return replace(log, segments=(*others, replace(last, handled=handled)))


@pytest.fixture
def log():
    return recorded(seed=3, most=45, losses=0).log("a-run", "")


def place_of(log, kind) -> int:
    return next(
        i for i, handled in enumerate(log.segments[-1].handled) if isinstance(handled.event, kind)
    )


def test_an_event_that_was_changed_is_found(log):
    place = place_of(log, p.FragmentScored)
    fragment = log.segments[-1].handled[place].event.fragment
    event = p.FragmentScored(replace(fragment, index=7))
    changed = tampered(log, place, event=event)
    found = replay(changed)
    assert found.num_events == place + sum(len(part.handled) for part in log.segments[:-1])
    assert found.difference.handled.event == event
    assert "was scored but not waited for" in found.difference.said


def test_an_instruction_that_was_changed_is_found(log):
    place = place_of(log, p.BatchGenerated)
    found = replay(tampered(log, place, instructions=()))
    assert found.difference.handled == replace(log.segments[-1].handled[place], instructions=())
    assert found.difference.said == log.segments[-1].handled[place].instructions


def test_an_event_that_is_missing_is_found(log):
    place = place_of(log, p.FragmentScored)
    del log.segments[-1].handled[place]
    assert replay(log).difference is not None


def test_a_state_that_was_changed_is_found_at_the_next_mark():
    log = recorded(seed=3).log("a-run", "")
    first, second, third = log.segments
    mark = replace(second.mark, snapshot=replace(second.mark.snapshot, version=9))
    found = replay(replace(log, segments=(first, replace(second, mark=mark), third)))
    assert found.difference.handled is None
    assert found.num_events == len(first.handled)


def test_an_event_that_does_not_fit_is_the_last_one_and_replays():
    it = recorded(most=20)
    with pytest.raises(ControllerError, match="comes next"):
        it.handle(p.IterationOffered(99, (0,)))
    log = it.log("a-run", "the run failed")
    assert "comes next" in log.segments[-1].handled[-1].error
    assert replay(log).difference is None
    mended = tampered(log, -1, error="")
    assert "comes next" in replay(mended).difference.said


def test_nothing_of_the_run_is_changed_by_what_is_done_with_its_log(tmp_path: Path):
    it = recorded(most=30)
    log = it.log("a-run", "")
    before = [len(part.handled) for part in log.segments]
    it.handle(p.CostsUpdated(make_costs()))
    assert [len(part.handled) for part in log.segments] == before
