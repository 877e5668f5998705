"""The benches of learning: what they print and draw from numbers by hand, and their settings."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from deployments.bench import learning
from deployments.bench.algorithms import SETTINGS, config_of
from deployments.bench.learning import Way, draw, print_ways, smoothed
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.config.load import config_of_run, load_config
from digen_core.control.layout import LAYOUTS
from digen_core.rollout.steps import steps_of_iteration
from support.paths import ROOT

SHAPES = ROOT / "deployments/configs/shapes.toml"


def test_means_and_spreads_by_hand(capsys):
    ways = [
        Way("serial", {0: 0.5, 1: 0.6, 2: 0.7}, {0: [1.0], 1: [1.0], 2: [1.0]}),
        Way("tcss", {0: 0.4, 1: 0.6, 2: 0.5}, {0: [1.0], 1: [1.0], 2: [1.0]}),
    ]
    print_ways(ways, "shapes/exact", load_config(SHAPES), Console(width=100))
    text = capsys.readouterr().out
    assert "shapes/exact after 21120 samples" in text  # 110 iterations of 192
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["serial", "0.500", "0.600", "0.700", "0.600", "0.100"],
        ["tcss", "0.400", "0.600", "0.500", "0.500", "0.100"],
    ]
    (axes,) = draw(ways, "reward").axes
    assert len(axes.lines) == 6
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["serial", "tcss"]


def test_however_many_ways_there_are_each_has_a_curve_that_is_told_from_others():
    names = ["serial", *LAYOUTS]
    (axes,) = draw([Way(name, {0: 0.5}, {0: [1.0, 2.0]}) for name in names], "reward").axes
    assert [line.get_label() for line in axes.lines] == names
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == len(names)


def test_smoothing_is_over_the_iterations_around():
    assert smoothed([1.0, 2.0, 6.0]) == [3.0, 3.0, 3.0]
    values = smoothed([0.0] * 10 + [9.0] + [0.0] * 10)
    assert values[5] == 0.0
    assert values[6:15] == [1.0] * 9


@pytest.mark.parametrize("name", SETTINGS)
def test_every_algorithm_trains_four_steps(name):
    config = config_of(name, load_config(SHAPES), seed=3)
    assert config.seed == 3
    assert name.startswith(config.algorithm.type)
    for iteration in range(5):
        assert len(steps_of_iteration(config, iteration).trained) == config.num_trained_steps == 4


def test_a_serial_run_is_judged_by_its_own_weights_also_after_a_longer_one(tmp_path, monkeypatch):
    weights = {"w": np.zeros(2, np.float32)}
    trained = SimpleNamespace(weights=weights, ema=weights, metrics=[{"reward/mean": 1.0}])
    monkeypatch.setattr(learning, "train_serially", lambda config: trained)

    def judged(run: str) -> tuple[str, int, int]:
        newest = checkpoints_in(Path(run) / CHECKPOINTS_OF_RUN)[-1].name
        config = config_of_run(Path(run))
        return newest, config.num_iterations, config.seed

    monkeypatch.setattr(learning, "evaluate_run", judged)

    def judged_after(num_iterations: int) -> tuple[str, int, int]:
        changes = {"num_iterations": num_iterations, "seed": 7, "tracking.runs_dir": str(tmp_path)}
        return learning._trained_serially(load_config(SHAPES, changes))[0]

    assert judged_after(30) == ("v0030", 30, 7)
    assert judged_after(20) == ("v0020", 20, 7)
