"""``digen report`` on a run folder as a run leaves it."""

import json
import re
from dataclasses import replace

import pytest

from deployments.cli import run
from deployments.views.report import shown_iterations
from deployments.views.report_rewards import reward_curves
from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport, SampleRow
from digen_core.trace.spans import write_devices, write_spans
from digen_core.trace.windows import Window, iteration_windows
from digen_core.transport.samples import write_samples
from support.small_disk import small_disk
from support.trace_schedules import devices_of, pipeline

REWARDS = {0: (0.25, 0.0), 1: (0.75, 1.0)}  # iteration -> (reward, exact)


def row(iteration):
    reward, exact = REWARDS[iteration]
    return SampleRow(
        **{"iteration": iteration, "group": 0, "sample": 0, "prompt": "a red circle", "seed": 0},
        **{"policy_version": iteration, "worker": "rollout-0", "advantage": 1.0, "trained": True},
        **{"steps": [0], "behaviour_logprobs": [0.5], "denoise_seconds": 1.0, "score_seconds": 1.0},
        reward=reward,
        rewards={"shapes/exact": exact, "shapes/score": reward},
    )


@pytest.fixture
def run_dir(tmp_path):
    """A run of two iterations on three devices."""
    folder = tmp_path / "shapes-1"
    spans = pipeline(2, 1, num_iterations=2)
    for iteration in (0, 1):
        own = [span for span in spans if span.iteration == iteration]
        write_spans(folder / "spans", iteration, own)
        write_samples(folder / "samples", iteration, [row(iteration)])
    write_devices(folder / "devices.parquet", devices_of(2, 1))
    return folder


def test_a_report_has_all_its_parts(run_dir, capsys):
    assert run(["report", str(run_dir)]) == 0
    out = run_dir / "report"
    assert sorted(path.name for path in out.iterdir()) == [
        *("idle.png", "report.html", "rewards.png"),
        *("timeline-000001.png", "timeline-000002.png", "trace.json"),
    ]
    assert len(json.loads((out / "trace.json").read_text())["traceEvents"]) > 100
    page = (out / "report.html").read_text()
    assert page.count('<img alt="') == 4
    assert set(re.findall(r'(?:src|href)="(.{14})', page)) == {"data:image/png"}  # self-contained
    printed = capsys.readouterr().out
    assert "shapes-1: 2 iterations, " in printed
    assert "on 3 devices" in printed
    assert "The run keeps no prediction (no schedule.json in its folder)." in printed


def test_the_idle_table_adds_up_to_all_device_time(run_dir, capsys):
    run(["report", str(run_dir)])
    rows = re.findall(r"(?m)^(\w+) +([\d.]+) +([\d.]+)% ", capsys.readouterr().out)
    seconds = {name: float(value) for name, value, _ in rows}
    windows = 3 * sum(
        max(s.ended for s in own) - min(s.queued for s in own)
        for k in (0, 1)
        for own in [[s for s in pipeline(2, 1, num_iterations=2) if s.iteration == k]]
    )
    assert sum(seconds.values()) == pytest.approx(windows, abs=0.5)
    assert sum(float(share) for _, _, share in rows) == pytest.approx(100, abs=0.5)
    assert min(seconds[name] for name in ("busy", "fill", "starvation", "tail", "push")) > 0
    assert seconds["switch"] == 0


def test_a_device_counts_in_the_iterations_in_which_it_was_there(run_dir, capsys):
    """Not before it joined, as where a run is resumed with more workers: that is no idle time."""
    spans = pipeline(2, 1, num_iterations=2)
    before = [s for s in spans if s.iteration == 0 and s.device != "rollout-1"]
    write_spans(run_dir / "spans", 0, before)
    assert run(["report", str(run_dir)]) == 0
    rows = re.findall(r"(?m)^(\w+) +([\d.]+) +[\d.]+% ", capsys.readouterr().out)
    windows = iteration_windows(before + [s for s in spans if s.iteration == 1])
    wanted = 2 * windows[0].seconds + 3 * windows[1].seconds
    assert sum(float(seconds) for _, seconds in rows) == pytest.approx(wanted, abs=0.5)


def test_dollars_in_the_name_of_a_run_make_no_formula(run_dir, capsys):
    other = run_dir.rename(run_dir.with_name(r"a $\frac$ b"))
    assert run(["report", str(other)]) == 0


def test_in_a_narrow_terminal_nothing_is_cut(run_dir, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    assert run(["report", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "orchestra" in out
    assert "…" not in out


def test_evaluations_fit_80_columns_unbroken(run_dir, capsys):
    (run_dir / "evaluation").mkdir()
    for tag, version in (("before", 0), ("after", 2)):
        report = EvaluationReport(
            version=version,
            num_prompts=2,
            num_samples=2,
            rewards={"shapes/relation": 0.5},
            by_prompt={"shapes/relation": [0.25, 0.75]},
            prompts_hash="a",
        )
        (run_dir / "evaluation" / f"{tag}.json").write_text(report.model_dump_json())
    assert run(["report", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("shapes/relation "))
    assert line.split()[1:] == [*("0.500 ± 0.250 " * 2 + "+0.000 ± 0.000 noise").split()]
    assert len(line) <= 80


def test_a_prediction_is_judged(run_dir, capsys):
    spans = [s for s in pipeline(2, 1, num_iterations=2) if s.iteration == 0]
    measured = max(s.ended for s in spans) - min(s.queued for s in spans)
    prediction = {"layout": "gap", "predicted_seconds": measured * 0.9}
    (run_dir / "schedule.json").write_text(json.dumps(prediction))
    run(["report", str(run_dir), "--out", str(run_dir / "other")])
    expected = (
        f"Layout gap: {measured * 0.9:.3g} s an iteration predicted, {measured:.3g} s measured"
    )
    assert f"{expected} (median), error -10.0%" in capsys.readouterr().out
    page = (run_dir / "other" / "report.html").read_text()
    assert page.count('<td class="number">-10.0%</td>') == 2


def test_a_prediction_is_of_iterations_with_the_devices_of_the_last(run_dir, capsys):
    """A run that is resumed with more workers is predicted anew."""
    spans = pipeline(2, 1, num_iterations=2)
    before = [s for s in spans if s.iteration == 0 and s.device != "rollout-1"]
    early = [replace(s, queued=s.queued - 99, started=s.started - 99) for s in before]
    write_spans(run_dir / "spans", 0, early)
    (run_dir / "schedule.json").write_text('{"layout": "gap", "predicted_seconds": 9}')
    measured = iteration_windows(spans)[1].seconds
    run(["report", str(run_dir)])
    assert f"9 s an iteration predicted, {measured:.3g} s measured" in capsys.readouterr().out
    page = (run_dir / "report" / "report.html").read_text()
    assert page.count(f"{9 / measured - 1:+.1%}") == 2


def test_a_long_iteration_is_shown_in_whole_seconds(run_dir, capsys):
    (run_dir / "schedule.json").write_text('{"layout": "gap", "predicted_seconds": 12345.6}')
    run(["report", str(run_dir)])
    assert "Layout gap: 12346 s an iteration predicted, " in capsys.readouterr().out


def test_a_run_without_samples_has_no_curves(run_dir):
    for path in (run_dir / "samples").iterdir():
        path.unlink()
    assert run(["report", str(run_dir)]) == 0
    assert (
        "The run keeps no samples, or has no reward of"
        in (run_dir / "report" / "report.html").read_text()
    )


@pytest.mark.parametrize("why", ["NaN", "no score"])
def test_curves_are_without_groups_that_were_dropped(run_dir, why):
    shapes = {"type": "shapes", "on_failure": "drop"}
    config = RunConfig.model_validate({"rewards": {"shapes": shapes}})
    (run_dir / "config.json").write_text(config.model_dump_json())
    marked = [replace(row(k), rewards=row(k).rewards | {"shapes/failed": 0.0}) for k in (0, 1)]
    black = replace(marked[1], group=1, reward=0.0, trained=False)
    other = replace(black, sample=1)
    if why == "NaN":
        black = replace(black, nonfinite="latent at step 3")
    else:
        black = replace(black, rewards=black.rewards | {"shapes/failed": 1.0})
    write_samples(run_dir / "samples", 0, marked[:1])
    write_samples(run_dir / "samples", 1, [marked[1], black, other])
    means, _ = reward_curves(run_dir)
    assert means["reward"] == {1: 0.25, 2: 0.75}
    write_samples(run_dir / "samples", 0, [replace(black, iteration=0)])
    write_samples(run_dir / "samples", 1, [black, other])
    assert reward_curves(run_dir) == ({}, {})


def test_scores_that_compare_the_samples_of_a_group_have_no_curve(run_dir):
    ranks = {"type": "ranked", "of": "shapes", "weight": 3.0}
    for weight, curves in ((0.5, {1: 0.125, 2: 0.375}), (0.0, None)):
        config = RunConfig.model_validate({"rewards": {"ranks": ranks, "shapes": weight}})
        (run_dir / "config.json").write_text(config.model_dump_json())
        means, errors = reward_curves(run_dir)
        assert means.get("reward") == curves
        assert means["shapes/exact"] == {1: 0.0, 2: 1.0}
        assert errors.keys() == means.keys()


def test_long_runs_show_the_first_the_typical_and_the_last_iteration():
    windows = {k: Window(0, 1.0 if k < 10 else 3.0) for k in range(21)} | {12: Window(0, 2.0)}
    assert shown_iterations(windows) == [0, 12, 20]
    assert shown_iterations(windows, every=True) == list(range(21))
    assert shown_iterations({k: windows[k] for k in range(20)}) == list(range(20))


def break_spans(folder):
    (folder / "spans" / "iteration-000001.parquet").write_bytes(b"PAR1")


def remove_spans(folder):
    for path in (folder / "spans").iterdir():
        path.unlink()


def remove_devices(folder):
    (folder / "devices.parquet").unlink()


def break_schedule(folder):
    (folder / "schedule.json").write_text('{"layout": "gap"}')


def predict(seconds):
    def damage(folder):
        text = f'{{"layout": "gap", "predicted_seconds": {seconds}}}'
        (folder / "schedule.json").write_text(text)

    return damage


NO_PREDICTION = "schedule.json: it must hold a layout and its predicted_seconds"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_spans, "holds no spans to report on; runs keep them in spans/"),
        (remove_devices, "holds no spans to report on; runs keep them in spans/ and devices.par"),
        (break_spans, "cannot read the spans of "),
        (break_schedule, NO_PREDICTION),
        *((predict(seconds), NO_PREDICTION) for seconds in ("NaN", "Infinity", "-1", "0")),
        (predict("1" + "0" * 400), NO_PREDICTION),
    ],
)
def test_a_run_that_cannot_be_reported_is_refused_in_one_line(run_dir, capsys, damage, message):
    damage(run_dir)
    assert run(["report", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (run_dir / "report").exists()


def test_a_run_that_is_missing_is_refused(tmp_path, capsys):
    assert run(["report", str(tmp_path / "nope")]) == 2
    assert "nope; give one such as runs/NAME" in capsys.readouterr().err


def test_the_name_of_a_run_in_place_of_its_folder_is_told(run_dir, monkeypatch, capsys):
    monkeypatch.chdir(run_dir.parent)
    (run_dir.parent / "runs").mkdir()
    (run_dir / "config.json").write_text("{}")
    run_dir.rename(run_dir.parent / "runs" / "one-20260101-120000")
    assert run(["report", "one-20260101-120000"]) == 2
    assert "; did you mean runs/one-20260101-120000?" in capsys.readouterr().err


def test_on_a_full_disk_nothing_is_left_by_half(run_dir, tmp_path, capsys):
    with small_disk(4096):
        assert run(["report", str(run_dir), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "out: File too large" in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_written_is_refused(run_dir, capsys):
    assert run(["report", str(run_dir), "--out", str(run_dir / "devices.parquet")]) == 2
    assert "cannot write the report to" in capsys.readouterr().err
