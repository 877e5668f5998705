import errno
import io
import logging
import math
import os
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from deployments.errors import RunStoppedError
from deployments.operation.prefect_server import PrefectApi
from deployments.stopping import stopping
from deployments.views.live_view import LiveView
from deployments.views.panel import LABEL_WIDTH, draw_page, share_lines
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.maths.statistics import error_of
from digen_core.records import EvaluationReport, IterationRecord
from tasks.views.display import HEADLINES, Progress, duration, line_chart, sparkline

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
    prompts = {name: [value - 0.125, value + 0.125] * 8 for name, value in rewards.items()}
    return EvaluationReport(
        version=version, num_prompts=16, num_samples=128, rewards=rewards, by_prompt=prompts
    )


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def page_of(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(view.render())
    return console.file.getvalue()


def line_with(page: str, text: str) -> str:
    (line,) = [line for line in page.splitlines() if text in line]
    return line


def test_no_label_is_cut():
    assert max(len(label) for label, _ in HEADLINES.values()) <= LABEL_WIDTH


def test_the_page_before_the_first_iteration():
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_phase("starting workers")
        page = page_of(view)
    assert "digen  shapes-1" in page
    assert "0 of 4 iterations" in page
    assert "starting workers" in page
    assert "left" not in line_with(page, "iterations")


def test_the_page_of_a_resumed_run_counts_what_it_did_before():
    """And of one that went back to a checkpoint not what is done again."""
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_resume(3)
        assert "3 of 4 iterations" in page_of(view)
        view.on_iteration(record_of(3))
        assert "4 of 4 iterations" in page_of(view)
        view.on_resume(2)
        assert "0:16 left" in line_with(page_of(view), "2 of 4 iterations")


def test_the_page_shows_how_the_run_goes():
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        for iteration in range(3):
            view.on_iteration(record_of(iteration))
        page = page_of(view)
        view.on_evaluation("before", report_of(0, 0.25))
        assert "before (v0)" in page_of(view)
    assert "0:08 left" in line_with(page, "3 of 4 iterations")
    assert line_with(page, "▁▅█").split()[1:4] == ["reward", "0.250", "0.750"]
    assert line_with(page, " shapes/exact  ").split()[1:4] == ["shapes/exact", "0.125", "0.125"]
    assert "12.3%" in line_with(page, "clipped")
    assert "0.00125" in line_with(page, "KL to the base model")
    assert "15.2" in line_with(page, "images/s")
    assert line_with(page, "rollout-0").split()[2] == "75%"
    assert "push 20%, tail 5%" in line_with(page, "rollout-0")


def test_many_causes_leave_room_for_the_rest_of_the_line():
    idle = {"tail": 0.24, "starvation": 0.2, "fill": 0.1, "orchestration": 0.05, "push": 0.004}
    metrics = {"device/rollout-0/busy_fraction": 0.406}
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_iteration(IterationRecord(0, 1, 8.0, metrics, idle={"rollout-0": idle}))
        lines = page_of(view).splitlines()
    (line,) = [line for line in lines if "rollout-0" in line]
    assert line.split()[1:3] == ["rollout-0", "41%"]
    assert "━━━━ " in line  # 4 of 10
    assert line.split("━ ")[1].strip("│ ").startswith("tail 24%, starvation 20%, fill 10%")
    assert max(map(len, lines)) == 88


def test_the_page_compares_the_first_evaluation_with_the_last():
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_evaluation("before", report_of(0, 0.25))
        view.on_evaluation("version 2", report_of(2, 0.375))
        view.on_evaluation("after", report_of(4, 0.75))
        page = page_of(view)
    heads = ["evaluation", "before", "(v0)", "after", "(v4)", "change"]
    assert line_with(page, "evaluation").split()[1:-1] == heads
    cells = line_with(page, "reward").split()
    # every prompt moved by the same: the change has no error, each mean has one
    assert cells[2:-1] == [
        *("0.250", "±", "0.032"),
        *("0.750", "±", "0.032"),
        *("+0.500", "±", "0.000"),
    ]


def test_the_last_page_stays_on_the_screen():
    console = terminal()
    with LiveView(CONFIG, "shapes-1", console) as view:
        view.on_warning("the lamp is broken")
        view.on_iteration(record_of(3))
    screen = console.file.getvalue()
    assert "warning: the lamp is broken" in screen
    assert "4 of 4 iterations" in screen
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
        "evaluation before: version 0, 128 samples of 16 prompts: reward 0.250 +- 0.032, "
        "shapes/exact 0.125 +- 0.032",
        "warning: the lamp is broken",
        "iteration 1 of 4: reward 0.250, shapes/exact 0.125, std within groups 0.120, "
        "groups without signal 1, KL to the base model 0.00125, clipped 12.3%, gradient norm 0.5, "
        "images/s 15.2, devices busy 75% (idle: push 20%, tail 5%), 0:24 left",
        "finished",
    ]


def test_an_evaluation_shows_no_iterations():
    with LiveView(CONFIG, "shapes-1", terminal(), trains=False) as view:
        page = page_of(view)
    assert "elapsed" in line_with(page, "evaluation")
    assert "iteration" not in page
    console = Console(file=io.StringIO())
    with LiveView(CONFIG, "shapes-1", console, trains=False) as view:
        view.on_phase("starting a worker")
    lines = [line.split("  ")[-1] for line in console.file.getvalue().splitlines()]
    assert lines == ["evaluation of run shapes-1", "starting a worker", "finished"]


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


class Gone(io.StringIO):
    """A terminal that is there no more, as after a lost connection."""

    def write(self, text):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_goes_on_when_its_terminal_is_gone(is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, color_system=None)
    with LiveView(RunConfig(), "shapes-20260101-120000", console) as view:
        console.file = Gone()
        view.on_warning("a worker is lost")
        view.on_iteration(record_of(0))


def test_time_left_follows_the_last_iterations():
    progress = Progress(RunConfig(num_iterations=12))
    assert progress.seconds_left is None
    for iteration in range(10):
        progress.add_iteration(record_of(iteration, seconds=100.0 if iteration < 5 else 10.0))
    assert progress.seconds_left == 20.0
    assert progress.fraction == 10 / 12


def test_time_left_is_not_that_of_a_pause():
    progress = Progress(RunConfig(num_iterations=12))
    for iteration, seconds in enumerate((10.0, 10.0, 36_000.0, 11.0)):
        progress.add_iteration(record_of(iteration, seconds=seconds))
    assert progress.seconds_left == 8 * 10.5


def test_time_left_is_bounded_by_the_budget():
    progress = Progress(RunConfig(num_iterations=100, max_minutes=1.0))
    progress.add_iteration(record_of(0, seconds=30.0))
    assert 50 < progress.seconds_left <= 60


def test_time_left_is_bounded_by_the_money_left():
    prices = ClusterConfig(price_per_hour={"cpu": 1.0})
    progress = Progress(RunConfig(num_iterations=100, max_cost=3.0, cluster=prices))
    costs = {"cost/iteration": 0.5, "cost/total": 2.0}
    record = record_of(0, seconds=30.0)
    progress.add_iteration(replace(record, metrics={**record.metrics, **costs}))
    assert progress.seconds_left == 60.0  # two more iterations


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
    chart = line_chart("reward", [0.0, 1.0, 0.5], 1, 3)
    assert '<polyline points="56.0,172.0 340.0,28.0 624.0,100.0"' in chart
    assert ">1.000</text>" in chart
    assert ">0.000</text>" in chart
    assert ">3</text>" in chart


def test_only_a_terminal_is_told_how_to_sign_in_to_prefect(monkeypatch):
    api, out = PrefectApi("http://127.0.0.1:4200/api", "digen:s3cret"), io.StringIO()
    with LiveView(CONFIG, "shapes-1", Console(file=out)) as view:
        view.on_prefect(api)
    assert "Prefect: http://127.0.0.1:4200\n" in out.getvalue()
    assert "sign-in" not in out.getvalue()

    now = 1000.0
    monkeypatch.setattr("deployments.views.live_view.monotonic", lambda: now)
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_prefect(api)
        first, again = (line_with(page_of(view), "Prefect  ") for _ in range(2))
        assert "http://127.0.0.1:4200/sign-in?code=" in first
        assert "s3cret" not in first
        assert first == again
        now += 61.0  # a link is good once: there is a new one soon
        assert line_with(page_of(view), "Prefect  ") != first


def test_names_give_the_terminal_no_orders():
    hostile = "[/red]\x1b[31m"
    record = record_of(0)
    record.metrics.update({f"reward/{hostile}/x": 1.0, f"device/{hostile}/busy_fraction": 0.5})
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_iteration(record)
        view.on_phase(hostile)
        view.on_evaluation("before", report_of(0, 0.5).model_copy(update={"rewards": {hostile: 1}}))
        page = page_of(view)
    assert page.count("[/red]") == 4
    assert "\x1b" not in page


def test_a_change_within_the_noise_says_so():
    noisy = {"standard_error/reward/mean": 0.25}
    with LiveView(CONFIG, "shapes-1", terminal()) as view:
        view.on_iteration(IterationRecord(0, 1, 8.0, {"reward/mean": 0.25, **noisy}))
        view.on_iteration(IterationRecord(1, 2, 8.0, {"reward/mean": 0.5, **noisy}))
        assert line_with(page_of(view), "reward").split()[-2] == "noise"
        view.on_iteration(IterationRecord(2, 3, 8.0, {"reward/mean": 1.25, **noisy}))
        line = line_with(page_of(view), "reward")
    assert line.split()[2:8] == ["0.250", "±", "0.250", "1.250", "±", "0.250"]
    assert "noise" not in line


def big_run(view: LiveView, num_devices: int) -> None:
    """Tell all that there is to show: every headline, components, and many devices."""
    names = [f"rollout-{number}" for number in range(num_devices)]
    parts = {f"reward/{name}/score": 0.5 for name in ("a_reward_with_a_long_name", "ocr", "clip")}
    metrics = {name: 0.5 for name in HEADLINES} | parts
    metrics |= {f"device/{name}/busy_fraction": 0.5 for name in names}
    metrics |= {error_of(name): 0.125 for name in ("reward/mean", *parts)}
    idle = {name: {"starvation": 0.2, "orchestration": 0.2, "tail": 0.1} for name in names}
    rewards = {name.removeprefix("reward/"): 0.5 for name in parts} | {"reward": 0.5}
    prompts = {name: [0.25, 0.75] * 8 for name in rewards}
    report = EvaluationReport(
        version=110, num_prompts=16, num_samples=128, rewards=rewards, by_prompt=prompts
    )
    for tag in ("before", "iteration-0010", "iteration-0020"):
        view.on_evaluation(tag, report)
    for iteration in range(3):
        view.on_iteration(IterationRecord(iteration, iteration + 1, 8.0, metrics, idle=idle))
    view.on_phase(
        "evaluating version 110 on 2048 prompts, which takes a while and says so at length"
    )
    view.on_step(3, 32)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (60, 20), (120, 50)])
@pytest.mark.parametrize("num_devices", [2, 64])
def test_the_page_fits_the_terminal(width, height, num_devices):
    size = {"width": width, "height": height, "color_system": None}
    console = Console(file=io.StringIO(), force_terminal=True, **size)
    paper = Console(file=io.StringIO(), **size)
    with LiveView(RunConfig(num_iterations=110), "shapes-20260101-120000", console) as view:
        big_run(view, num_devices)
        paper.print(view.render())
    lines = paper.file.getvalue().splitlines()
    assert len(lines) < height  # one stays for the cursor
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "3 of 110 iter" in text
    assert "3 of 32" in text
    if height >= 24:
        assert "reward " in text
        assert "evaluation" in text
        assert "rollout-0" in text
        assert (" more " in text) == (num_devices == 64 or height == 24)
    if (width, height) == (80, 24):
        assert text.count("0.500 ± 0.125") >= 4
        assert text.count("±") >= 10
        assert "…" not in line_with(text, "change")


def test_a_terminal_of_any_size_has_a_page():
    """It is drawn by a thread, which an error would end."""
    view = LiveView(RunConfig(num_iterations=110), "shapes-20260101-120000", terminal())
    big_run(view, 2)
    for width in range(1, 12):
        for height in range(8):
            page = draw_page("a-run", view._progress, width, height, "Prefect  http://x:4200")
            Console(file=io.StringIO(), width=width, height=height).print(page)


@pytest.mark.parametrize(
    ("wanted", "room", "given"),
    [
        ([3, 4, 5], 12, [3, 4, 5]),
        ([3, 10, 5], 12, [3, 4, 5]),
        ([10, 10], 8, [4, 4]),
        ([2, 30], 6, [2, 4]),
        ([], 5, []),
        ([3, 3], 0, [0, 0]),
    ],
)
def test_lines_are_taken_from_the_longest(wanted, room, given):
    assert share_lines(wanted, room) == given


def test_a_phase_without_a_terminal_says_how_far_it_is_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("deployments.views.live_view.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=80)
    with LiveView(CONFIG, "shapes-1", console) as view:
        view.on_phase("loading the model on the workers")
        for done, seconds in ((0, 1), (1, 31), (2, 40), (3, 62)):
            now[0] = 100.0 + seconds
            view.on_step(done, 8)
    lines = [line.split("  ")[-1] for line in console.file.getvalue().splitlines()]
    assert lines[1:-1] == [
        "loading the model on the workers",
        "loading the model on the workers: 1 of 8",
        "loading the model on the workers: 3 of 8",
    ]


@pytest.mark.parametrize("is_command", [True, False])
def test_a_run_that_is_cancelled_ends_a_command_but_no_notebook(is_command, monkeypatch):
    begun = []
    monkeypatch.setattr(stopping, "begin", lambda: begun.append(True))
    monkeypatch.setattr(stopping, "is_installed", is_command)
    LiveView(CONFIG, "main", terminal()).on_stop("cancelled in Prefect")
    assert bool(begun) == is_command
