"""``digen explain`` on the logs of runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.cli import run
from digen_core.control.protocol import FragmentScored
from digen_core.eventlog.file import EVENTS_OF_RUN, write_log
from support.recorded import recorded


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """A run that stands still in its second iteration."""
    folder = tmp_path / "shapes-1"
    folder.mkdir()
    log = recorded("gap", 1, most=70, losses=0).log("shapes-1", "nothing had happened for 130 s")
    write_log(folder, log)
    return folder


def test_it_says_what_the_run_waits_for(run_dir, capsys):
    assert run(["explain", str(run_dir)]) == 0
    head, replayed, columns, *rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"shapes-1 at \d{4}-.* \d\d:\d\d:\d\d: nothing had happened for 130 s", head
    )
    assert replayed == "replayed: a new controller says the same to all 70 events"
    assert columns.split("  ")[0] == "device"
    assert [row.split()[0] for row in rows[:5]] == [
        *("rollout-0", "rollout-1", "rollout-2", "trainer-0", "trainer-1")
    ]
    assert any(re.match(r"iteration \d still needs", row) for row in rows)


def test_it_tells_the_story_of_a_fragment(run_dir, capsys):
    assert run(["explain", str(run_dir), "i1", "g2", "f1"]) == 0
    _, columns, first, *others = capsys.readouterr().out.splitlines()
    assert columns.split() == ["time", "device", "after"]
    assert "-> generate i1 g2 f1, steps 0 to " in first
    assert re.search(r"scored i1 g2 f1 +\d+\.000 s", "\n".join(others))


def test_it_prints_json(run_dir, capsys):
    assert run(["explain", str(run_dir), "--json"]) == 0
    now = json.loads(capsys.readouterr().out)
    assert now["run"] == "shapes-1"
    assert len(now["devices"]) == 5
    assert run(["explain", str(run_dir), "rollout-0", "i1", "--json"]) == 0
    story = json.loads(capsys.readouterr().out)["story"]
    assert {line["device"] for line in story} == {"rollout-0"}


def test_a_replay_that_differs_is_said_with_its_event(run_dir, capsys):
    log = recorded("gap", 1, most=70, losses=0).log("shapes-1", "")
    handled = log.segments[0].handled
    number = next(i for i, one in enumerate(handled) if isinstance(one.event, FragmentScored))
    fragment = replace(handled[number].event.fragment, index=9)
    handled[number] = replace(handled[number], event=FragmentScored(fragment))
    write_log(run_dir, log)
    assert run(["explain", str(run_dir)]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(f"the replay differs at event {number + 1}, ")
    assert f"to 'scored i1 g{fragment.group} f9' the run's controller said" in line
    assert "a new one ControllerError: " in line


def test_mistakes_are_one_line(run_dir, refused):
    assert "there is no run folder" in refused(["explain", str(run_dir / "no")])
    assert "tells nothing of i99" in refused(["explain", str(run_dir), "i99"])
    assert "'q7' is nothing that the log tells of" in refused(["explain", str(run_dir), "q7"])
    (run_dir / EVENTS_OF_RUN).write_text("{}\n")
    assert "events.jsonl is damaged: line 1" in refused(["explain", str(run_dir)])
    (run_dir / EVENTS_OF_RUN).unlink()
    assert "has no events.jsonl: a run writes it when" in refused(["explain", str(run_dir)])


def test_nothing_in_a_log_gives_the_terminal_orders(run_dir, capsys):
    log = recorded("gap", 1, most=70).log("[bold]shapes\x1b[2J", "\x1b]0;mine\x07")
    write_log(run_dir, log)
    assert run(["explain", str(run_dir)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[bold]shapes" in printed
