"""'digen bench recipe': what it prints and keeps of a shrunk recipe's run."""

import pytest

from deployments.bench import recipe as bench
from deployments.cli import run
from deployments.levels import Proof, digest_of, level_of
from deployments.shipped import RECIPES
from digen_core.config.load import load_config

NAME = "dance_grpo_flux"
BEFORE = [0.30, 0.31, 0.32]


@pytest.fixture
def levels(tmp_path, monkeypatch):
    monkeypatch.setattr("deployments.levels.LEVELS", tmp_path)
    return tmp_path


def trained(*after):
    return lambda path, iterations, settings: bench.Trained(
        {"num_iterations": iterations, **settings}, BEFORE, list(after), 12.34
    )


def test_what_reaches_the_target_is_kept(levels, monkeypatch, capsys):
    monkeypatch.setattr(bench, "train_shrunk", trained(0.40, 0.411, 0.42))
    arguments = ["bench", "recipe", NAME, "--iterations", "7", "--train.learning-rate", "1e-3"]
    assert run(arguments) == 0
    assert "reached" in capsys.readouterr().out
    assert level_of(RECIPES / f"{NAME}.toml") == "D"  # nobody asked to keep it
    assert run([*arguments, "--write"]) == 0
    proof = Proof.model_validate_json((levels / f"{NAME}.json").read_text())
    assert proof.command == (
        f"digen bench recipe {NAME} --iterations 7 --train.learning-rate 0.001 --write"
    )
    assert proof.settings == digest_of(RECIPES / f"{NAME}.toml")
    assert proof.reward == "warmth"
    assert proof.changes == {"num_iterations": 7, "train.learning_rate": 1e-3}
    assert level_of(RECIPES / f"{NAME}.toml") == "T"


def test_what_misses_the_target_is_not_kept(levels, monkeypatch, capsys):
    monkeypatch.setattr(bench, "train_shrunk", trained(0.40, 0.35, 0.30))
    assert run(["bench", "recipe", NAME, "--write"]) == 1
    assert "not reached" in capsys.readouterr().out
    assert not list(levels.iterdir())


@pytest.mark.parametrize("means", [[0.30, 0.31, 0.32], [0.3, 0.3], [0.3]])
def test_a_change_without_a_standard_error_does_not_reach_the_target(
    means, levels, monkeypatch, capsys
):
    """As after so few iterations that the average of the weights has not moved."""
    run_ = bench.Trained({}, means, means, 12.34)
    monkeypatch.setattr(bench, "train_shrunk", lambda *_: run_)
    assert run(["bench", "recipe", NAME, "--write"]) == 1
    assert "a change of 0.0 standard errors" in capsys.readouterr().out
    assert not list(levels.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "takes the name of a recipe"),
        (["shapes"], "takes the name of a recipe"),
        ([NAME, "--iterations", "0"], "--iterations is 0"),
        ([NAME, "--train.lerning-rate", "1"], "lerning_rate"),
    ],
)
def test_wrong_arguments(levels, arguments, message, capsys):
    assert run(["bench", "recipe", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_is_shrunk_keeps_what_makes_the_recipe():
    for path in RECIPES.glob("*.toml"):
        recipe = load_config(path)
        small = load_config(path, bench.changes_of(recipe, recipe.model.path, 3))
        changed = {"best_of"}
        assert small.algorithm.model_dump(exclude=changed) == recipe.algorithm.model_dump(
            exclude=changed
        )
        assert (small.algorithm.best_of is None) == (recipe.algorithm.best_of is None)
        assert small.rewards == recipe.rewards
        for key in ("transition", "noise_level", "initial_noise"):
            assert getattr(small.rollout, key) == getattr(recipe.rollout, key)
        for key in ("updates_per_iteration", "dealt_by", "learning_rate", "ema_decay", "betas"):
            assert getattr(small.train, key) == getattr(recipe.train, key)
        if recipe.train.lora:
            scale = recipe.train.lora.alpha / recipe.train.lora.rank
            assert small.train.lora.alpha / small.train.lora.rank == pytest.approx(scale)
            assert small.train.lora.targets == recipe.train.lora.targets


@pytest.mark.parametrize(
    ("name", "settings", "steps"),
    [
        ("dgpo_sd3_ocr", {}, 6),
        ("dgpo_sd3_ocr", {"algorithm.num_levels": 5}, 8),  # of 0.7 * 8 levels
        ("awm_sd3_pickscore", {}, 8),
        ("awm_sd3_pickscore", {"algorithm.first_level": 3}, 10),  # six of 0.9 * 10 less three
        ("diffusion_nft_sd3_ocr", {"algorithm.trained_fraction": 0.1}, 10),
        ("flow_grpo_sd3_fast_nocfg", {"algorithm.window": [3, 0, 8]}, 9),
    ],
)
def test_it_takes_as_many_steps_as_its_settings_ask_for(name, settings, steps):
    recipe = load_config(RECIPES / f"{name}.toml", settings)
    changes = bench.changes_of(recipe, recipe.model.path, 1)
    assert changes["rollout.num_steps"] == steps
    load_config(RECIPES / f"{name}.toml", settings | changes)


def test_what_is_shrunk_is_the_recipe_with_the_settings_given(monkeypatch):
    shrunk = []
    monkeypatch.setattr(bench, "changes_of", lambda recipe, *_: shrunk.append(recipe) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.train_shrunk(RECIPES / "dgpo_sd3_ocr.toml", 1, {"algorithm.num_levels": 5})
    assert shrunk[0].algorithm.num_levels == 5
