import io
import logging
import math
import sys

import pytest
from rich.console import Console

from deployments.errors import RunStoppedError
from deployments.live_view import LiveView
from digen_core.config import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks.display import Progress, duration, line_chart, sparkline

CONFIG = RunConfig(num_iterations=4)


def record_of(iteration: int, seconds: float = 8.0) -> IterationRecord:
    metrics = {
        "reward/mean": 0.25 * (iteration + 1),
        "reward/std": 0.12,
        "reward/shapes/exact": 0.125,
        "groups/zero_variance": 1.0,
        "train/clip_fraction": 0.123,
        "train/kl": 0.00125,
        "train/grad_norm": 0.5,
        "throughput/samples_per_second": 15.25,
        "device/rollout-0/busy_fraction": 0.75,
    }
    metrics |= {"idle/fill": 0.0, "idle/tail": 0.05, "idle/push": 0.2}
    idle = {"rollout-0": {"fill": 0.0, "tail": 0.05, "push": 0.2}}
    return IterationRecord(iteration, iteration + 1, seconds, metrics, idle=idle)


def report_of(version: int, reward: float) -> EvaluationReport:
    rewards = {"reward": reward, "shapes/exact": reward / 2}
    return EvaluationReport(version=version, num_prompts=16, num_samples=128, rewards=rewards)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def page_of(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(view.render())
    return console.file.getvalue()


def line_with(page: str, text: str) -> str:
    (line,) = [line for line in page.splitlines() if text in line]
    return line


def test_the_page_before_the_first_iteration():
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_phase("starting workers")
        page = page_of(view)
    assert "digen  shapes-1" in page
    assert "0/4 iterations" in page
    assert "starting workers" in page
    assert "left" not in line_with(page, "iterations")


def test_the_page_shows_how_the_run_goes():
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_evaluation("before", report_of(0, 0.25))
        for iteration in range(3):
            view.on_iteration(record_of(iteration))
        page = page_of(view)
    assert "0:08 left" in line_with(page, "3/4 iterations")
    assert line_with(page, "▁▅█").split()[1:4] == ["reward", "0.250", "0.750"]
    assert "│ shapes/exact                 0.125     0.125  ▁▁▁ " in page
    assert "12.3%" in line_with(page, "clipped")
    assert "0.00125" in line_with(page, "KL to the base model")
    assert "15.2" in line_with(page, "images/s")
    assert line_with(page, "rollout-0").split()[2] == "75%"
    assert "push 20%, tail 5%" in line_with(page, "rollout-0")
    assert "before (v0)" in page


def test_many_causes_leave_room_for_the_rest_of_the_line():
    idle = {"tail": 0.24, "starvation": 0.2, "fill": 0.1, "orchestration": 0.05, "push": 0.004}
    metrics = {"device/rollout-0/busy_fraction": 0.406}
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_iteration(IterationRecord(0, 1, 8.0, metrics, idle={"rollout-0": idle}))
        lines = page_of(view).splitlines()
    (place,) = [number for number, line in enumerate(lines) if "rollout-0" in line]
    assert lines[place].split()[1:3] == ["rollout-0", "41%"]
    assert "━━━━ " in lines[place]  # 4 of 10
    assert lines[place].split("━ ")[1].strip("│ ") == "tail 24%, starvation 20%, fill 10%,"
    assert lines[place + 1].strip("│ ") == "orchestration 5%"


def test_the_page_compares_the_first_evaluation_with_the_last():
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_evaluation("before", report_of(0, 0.25))
        view.on_evaluation("version 2", report_of(2, 0.375))
        view.on_evaluation("after", report_of(4, 0.75))
        page = page_of(view)
    assert "before (v0)  after (v4)    change" in line_with(page, "evaluation")
    assert line_with(page, "reward").split()[2:5] == ["0.250", "0.750", "+0.500"]


def test_the_last_page_stays_on_the_screen():
    console = terminal()
    with LiveView(CONFIG, "shapes-1", console) as view:
        view.on_warning("the lamp is broken")
        view.on_iteration(record_of(3))
    screen = console.file.getvalue()
    assert "warning: the lamp is broken" in screen
    assert "4/4 iterations" in screen
    assert "finished" in screen


def test_without_a_terminal_each_event_is_one_ascii_line():
    console = Console(file=io.StringIO(), width=40)
    with LiveView(CONFIG, "shapes-1", console) as view:
        view.on_phase("starting workers")
        view.on_evaluation("before", report_of(0, 0.25))
        view.on_warning("the lamp is broken")
        view.on_iteration(record_of(0))
    output = console.file.getvalue()
    assert output.isascii()
    assert [line.split("  ")[-1] for line in output.splitlines()] == [
        "run shapes-1, 4 iterations",
        "starting workers",
        "evaluation before: version 0, 128 samples of 16 prompts: reward 0.250, shapes/exact 0.125",
        "warning: the lamp is broken",
        "iteration 1/4: reward 0.250, shapes/exact 0.125, std within groups 0.120, "
        "groups without signal 1, KL to the base model 0.00125, clipped 12.3%, gradient norm 0.5, "
        "images/s 15.2, devices busy 75% (idle: push 20%, tail 5%), 0:24 left",
        "finished",
    ]


@pytest.mark.parametrize("force_terminal", [True, False])
@pytest.mark.parametrize(
    ("error", "word"),
    [
        (RuntimeError("no worker"), "failed"),
        (RunStoppedError("stopped"), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(143), "terminated"),
    ],
)
def test_how_a_run_ended_is_told(force_terminal, error, word):
    console = Console(file=io.StringIO(), force_terminal=force_terminal, color_system=None)
    with pytest.raises(type(error)), LiveView(CONFIG, "shapes-1", console) as view:
        raise error
    shown = console.file.getvalue()
    assert shown.endswith(f"{word}\n") or view._progress.phase == word


def test_log_lines_do_not_tear_the_page(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    handler = logging.StreamHandler()  # holds what is stderr now
    logger = logging.getLogger("test_live_view")
    logger.addHandler(handler)
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with LiveView(CONFIG, "shapes-1", console) as view:
        view.on_iteration(record_of(0))
        logger.warning("a worker is slow")
        assert handler.stream is not screen
    logger.removeHandler(handler)
    assert handler.stream is screen
    lines = screen.getvalue().splitlines()
    (index,) = [i for i, line in enumerate(lines) if line.endswith("a worker is slow")]
    assert lines[index + 1].startswith("╭")  # the page is drawn again, below


def test_time_left_follows_the_last_iterations():
    progress = Progress(RunConfig(num_iterations=12))
    assert progress.seconds_left is None
    for iteration in range(10):
        progress.add_iteration(record_of(iteration, seconds=100.0 if iteration < 5 else 10.0))
    assert progress.seconds_left == 20.0
    assert progress.fraction == 10 / 12


def test_time_left_is_bounded_by_the_budget():
    progress = Progress(RunConfig(num_iterations=100, max_minutes=1.0))
    progress.add_iteration(record_of(0, seconds=30.0))
    assert 50 < progress.seconds_left <= 60


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (83, "1:23"), (3723, "1:02:03")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sparklines():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0], 8) == "▁▁"
    assert sparkline([0.0, math.nan, 1.0], 8) == "▁ █"
    assert sparkline([], 8) == ""
    assert sparkline([0, 0, 1, 1], 2) == "▁█"


def test_a_chart_ends_at_its_last_value():
    chart = line_chart("reward", [0.0, 1.0, 0.5])
    assert '<polyline points="56.0,172.0 340.0,28.0 624.0,100.0"' in chart
    assert ">1.000</text>" in chart
    assert ">0.000</text>" in chart
    assert ">3</text>" in chart
