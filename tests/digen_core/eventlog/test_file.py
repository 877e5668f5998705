"""The file of an event log: what comes back is what went in, and damage is one line."""

from dataclasses import replace
from math import inf, nan

import pytest

from digen_core.control import protocol as p
from digen_core.control.schedule import StaleGroups
from digen_core.errors import UserError
from digen_core.eventlog.entries import Asked, Handled, Log, Mark, Segment
from digen_core.eventlog.file import EVENTS_OF_RUN, answering, ask, read_log, write_log
from support.batches import alone
from support.random_cluster import make_costs
from support.recorded import recorded

FRAGMENT = p.Fragment(0, 1, 2, 4, 2)
PACK = p.Pack(0, 3, (p.PairBlock(FRAGMENT, 2, 0, 2),))
EVENTS = [
    p.DeviceJoined(p.Device("gpu-9", frozenset({"rollout", "trainer"}), "H100 “80 GB”\n")),
    p.DevicesLost(("a", "b")),
    p.DeviceLeaving("a"),
    p.VersionLoaded("a", 2),
    p.PushFailed("a", 2, "b"),
    p.ReduceFailed(1),
    p.Switched("a", "trainer"),
    p.IterationOffered(3, (0, 2), (1.5, inf, -inf)),
    p.IterationOffered(4, (0, 1, 2), own_steps=(((0, 2), (1, 2)), ((0, 1), (0, 2)))),
    p.IterationOffered(5, (0,), stale_limit=StaleGroups(0, 1)),
    p.BatchPaused(alone(FRAGMENT), 2),
    p.BatchLate(alone(FRAGMENT), 2.5),
    p.BatchGenerated(alone(FRAGMENT)),
    p.FragmentScored(FRAGMENT),
    p.AdvantagesComputed(0, (0, 1), (1,), ((0, 3), ())),
    p.GroupsReplaced(0, ((0, 4),)),
    p.PackTrained(PACK),
    p.PackTooLarge(PACK),
    p.CostsUpdated(make_costs(0.1 + 0.2)),
    p.GradientReduced(0),
    p.Stepped(1),
    p.UpdateSkipped(0, 1),
    p.StateCopied("a", 1),
]
INSTRUCTIONS = (
    p.Generate(alone(FRAGMENT), 0, 4, 0, "a"),
    p.Pause(alone(FRAGMENT), "a"),
    p.Score(FRAGMENT, "a"),
    p.ComputeAdvantages(0, (0, 1)),
    p.Train(PACK, 0, "a"),
    p.Reduce(0, ("a", "b"), "a"),
    p.Step(0, 0, "a"),
    p.CopyState(1, "a", "b"),
    p.Push(1, "a", "b"),
    p.Switch("a", "rollout"),
    p.Release("a"),
    p.FinishIteration(0, updated=True),
)


@pytest.fixture
def mark() -> Mark:
    """A mark in the middle of an iteration."""
    return recorded(most=30, most_events=5).log("", "").segments[-1].mark


def test_there_is_a_case_of_each_word():
    assert {type(event) for event in EVENTS} == set(p.Event.__args__)
    assert {type(do) for do in INSTRUCTIONS} == set(p.Instruction.__args__)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_word_comes_back(event, mark, tmp_path):
    handled = [Handled(1.25, event, INSTRUCTIONS), Handled(0.1, event, error="odd\nline")]
    asked = tuple(Asked(1.0, do) for do in INSTRUCTIONS)
    log = Log("a run", 3.5, "“why”", (Segment(replace(mark, under_way=asked), handled),))
    write_log(tmp_path, log)
    assert read_log(tmp_path) == log


def test_a_cost_that_is_no_number_comes_back(mark, tmp_path):
    handled = Handled(1.0, p.IterationOffered(0, (0,), (nan,)), ())
    write_log(tmp_path, Log("", 0.0, "", (Segment(mark, [handled]),)))
    (cost,) = read_log(tmp_path).segments[0].handled[0].event.group_costs
    assert cost != cost


def test_a_run_without_a_log_says_when_it_would_have_one(tmp_path):
    with pytest.raises(UserError, match=r"has no events\.jsonl: a run writes it when"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [], "is damaged: it is empty"),
        (lambda lines: ["{"], "is damaged: line 1: Invalid JSON"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], r"is damaged: line \d+: Invalid JSON"),
        (lambda lines: lines[1:], "is no event log of this version of digen"),
        (lambda lines: [lines[0].replace('"format":6', '"format":5')], "is no event log of this"),
        (lambda lines: [lines[0].replace("Head", "Tail")], r"line 1: Input tag 'Tail' found"),
        (lambda lines: lines[:1], "is damaged: it has no mark to begin from"),
        (lambda lines: [lines[0], *lines[2:]], "is damaged: line 2 is out of place"),
        (lambda lines: [*lines, lines[0]], r"is damaged: line \d+ is out of place"),
        (
            lambda lines: [line.replace("FragmentScored", "FragmentBlessed") for line in lines],
            r"line \d+: Handled\.event: Input tag 'FragmentBlessed' found",
        ),
        (
            lambda lines: [lines[0], lines[1].replace('"time":', '"time":NaN,"_":')],
            r"line 2: Mark\.time: Input should be ",
        ),
        (lambda lines: ["[1]"], "is damaged: line 1"),
        (lambda lines: ["null"], "is damaged: line 1"),
        (lambda lines: ["[" * 10_000], "is damaged: line 1"),
    ],
)
def test_damage_is_one_line(damage, message, tmp_path):
    path = write_log(tmp_path, recorded(most=100).log("a-run", ""))
    path.write_text("\n".join(damage(path.read_text().splitlines())))
    with pytest.raises(UserError, match=message) as error:
        read_log(tmp_path)
    assert "\n" not in str(error.value)


def test_a_mark_from_which_nothing_can_begin_is_damage(mark, tmp_path):
    (iteration,) = mark.snapshot.iterations[:1]
    waiting = ((p.Fragment(0, 77, 0, 0, 2), 0),)
    broken = replace(mark.snapshot, iterations=(replace(iteration, waiting=waiting),))
    write_log(tmp_path, Log("", 0.0, "", (Segment(replace(mark, snapshot=broken), []),)))
    with pytest.raises(UserError, match=r"nothing begins from its first mark: KeyError: 77$"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"num_groups": 10**9}, {"group_size": 10**9}, {"pack_size": 10**9}]
)
def test_a_workload_that_would_fill_the_memory_is_damage(changes, mark, tmp_path):
    workload = replace(mark.snapshot.workload, **changes)
    mark = replace(mark, snapshot=replace(mark.snapshot, workload=workload))
    write_log(tmp_path, Log("", 0.0, "", (Segment(mark, []),)))
    with pytest.raises(UserError, match=r"its workload is larger than any$"):
        read_log(tmp_path)


def test_a_log_is_not_written_through_a_link(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.write_text("mine")
    (run / EVENTS_OF_RUN).symlink_to(other)
    with pytest.raises(UserError, match="leads out of"):
        write_log(run, recorded(most=5).log("a-run", ""))
    assert other.read_text() == "mine"


def test_somebody_asks_and_is_answered(tmp_path):
    with answering(tmp_path) as is_asked:
        assert not is_asked
    request = ask(tmp_path)
    with answering(tmp_path) as is_asked:
        assert is_asked
        assert request.exists()
    assert not request.exists()
