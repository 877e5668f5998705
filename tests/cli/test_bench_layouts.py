"""digen bench layouts: what users get wrong is one line, before anything starts."""

import pytest

MISTAKES = {
    "no such scenario": (["Z"], "there is no scenario Z; use A, A2, B"),
    "no such layout": (["B", "--layout", "tsp", "elastik"], "there is no layout elastik; did you"),
    "no time": (
        ["B", "--time-scale", "0"],
        "--time-scale is 0.0, --iterations 3, --seed 0 and --rounds 2; use",
    ),
    "nothing to compare with": (["B", "--iterations", "1"], "iterations >= 2"),
    "a negative seed": (["B", "--seed", "-1"], "seed >= 0"),
    "no steps": (["B", "--steps-per-task", "0"], "--steps-per-task is 0; use auto, or 1 or more"),
    "no rounds": (["B", "--rounds", "0"], "rounds >= 1"),
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


def test_a_config_is_told_from_a_scenario(refused, job):
    assert "there is no layout tps" in refused(["bench", "layouts", "job.toml", "--layout", "tps"])
    (job / "job.toml").write_text("[rollout]\ngroupsize = 2\n")
    assert "unknown key" in refused(["bench", "layouts", "job.toml"])
