"""digen bench layouts: what users get wrong is one line, before anything starts."""

from pathlib import Path

import pytest

from deployments.bench import training as bench
from deployments.cli import run

MISTAKES = {
    "no such scenario": (["Z"], "there is no scenario Z; use A, A2, B"),
    "no such layout": (["B", "--layout", "tsp", "elastik"], "there is no layout elastik; did you"),
    "no time": (
        ["B", "--time-scale", "0"],
        "--time-scale is 0.0; use a number above 0 and up to 10",
    ),
    "nothing to compare with": (["B", "--iterations", "1"], "--iterations is 1; use 2 or more"),
    "a negative seed": (["B", "--seed", "-1"], "--seed is -1; use 0 or more"),
    "no steps": (["B", "--steps-per-task", "0"], "--steps-per-task is 0; use auto, or 1 to 1000"),
    "no rounds": (["job.toml", "--rounds", "0"], "--rounds is 0; use 1 or more"),
    "no iteration": (["job.toml", "--iterations", "0"], "--iterations is 0; use 1 or more"),
    "half a step": (["B", "--steps-per-task", "0.5"], "--steps-per-task is 0.5; use auto"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line(case, refused):
    arguments, message = MISTAKES[case]
    assert message in refused(["bench", "layouts", *arguments])


def test_a_scenario_file_with_a_typo(refused, job):
    (job / "mine.toml").write_text("devices = 4\ngroupsize = 2\n")
    line = refused(["bench", "layouts", "mine.toml"])
    assert "unknown key groupsize; did you mean group_size?" in line


def test_one_iteration_of_real_compute_is_taken(job, local, monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "_real_layouts", lambda *given: asked.append(given) or 0)
    assert run(["bench", "layouts", "job.toml", "--iterations", "1", "--seed", "-1"]) == 0
    assert asked == [(Path("job.toml"), None, 2, 1)]


def test_a_config_is_told_from_a_scenario(refused, job):
    assert "there is no layout tps" in refused(["bench", "layouts", "job.toml", "--layout", "tps"])
    (job / "job.toml").write_text("[rollout]\ngroupsize = 2\n")
    assert "unknown key" in refused(["bench", "layouts", "job.toml"])
