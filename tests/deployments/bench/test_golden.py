"""The golden curve: what counts as the same, what is kept, and that the kept one is whole."""

import json
from math import inf, nan

import pytest
from rich.console import Console

from deployments.bench import golden
from deployments.bench.golden import GOLDEN_FILE, NUM_ITERATIONS, Golden, compare, read_golden
from deployments.errors import RunFailedError
from digen_core.errors import UserError

KEPT = Golden(config="shapes", torch="2.0", tolerance=0.01, reward=(0.5, 0.6))


@pytest.fixture
def rewards(monkeypatch):
    """What the run gives, which takes a minute: to be filled."""
    found: list[float] = []
    monkeypatch.setattr(golden, "measure", lambda config, console: found)
    return found


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([0.5, 0.6], [True, True]),
        ([0.509, 0.591], [True, True]),
        ([0.5, 0.611], [True, False]),
        ([0.489, 0.6], [False, True]),
        ([nan, inf], [False, False]),
        ([0.5], [True, False]),
        ([0.5, 0.6, 0.6], [True, True, False]),
        ([], [False, False]),
    ],
)
def test_curves_agree_within_the_tolerance_in_all_iterations(measured, expected):
    assert [row.holds for row in compare(KEPT, measured)] == expected


def test_it_compares_writes_and_compares_again(tmp_path, rewards, capsys):
    path = tmp_path / "curve.json"
    path.write_text(KEPT.model_dump_json())
    rewards += [0.5, 0.7]
    assert golden.main(write=False, path=path) == 1
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if "differs" in line] == [
        ["2", "0.6000", "0.7000", "+0.1000", "differs"]
    ]
    assert "kept with torch 2.0" in out
    assert "tolerance 0.01: 1 of 2 iterations differ" in out
    assert golden.main(write=True, path=path) == 0
    assert read_golden(path).reward == (0.5, 0.7)
    assert golden.main(write=False, path=path) == 0
    assert "the curves agree" in capsys.readouterr().out


def test_a_curve_with_nan_is_never_kept_and_never_agrees(tmp_path, rewards):
    path = tmp_path / "curve.json"
    path.write_text(KEPT.model_dump_json())
    rewards += [0.5, nan]
    assert golden.main(write=False, path=path) == 1
    with pytest.raises(RunFailedError, match="nothing was written: the rewards are"):
        golden.main(write=True, path=path)
    assert read_golden(path) == KEPT


def test_a_row_that_is_missing_is_shown_as_such(capsys):
    golden.print_rows(KEPT, compare(KEPT, [0.5]), Console(width=100))
    assert ["2", "0.6000", "-", "-", "differs"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        KEPT.model_dump_json().replace("0.6", "NaN"),
        KEPT.model_copy(update={"reward": ()}).model_dump_json(),
        KEPT.model_copy(update={"tolerance": 0}).model_dump_json(),
        json.dumps({**KEPT.model_dump(), "surplus": 1}),
    ],
)
def test_a_file_that_is_no_curve_is_refused_before_the_run(tmp_path, text):
    path = tmp_path / "curve.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"curve\.json is no golden curve; .* --write makes it"):
        golden.main(write=False, path=path)


def test_a_file_that_is_missing_says_how_it_is_made(tmp_path):
    with pytest.raises(UserError, match=r"golden --write makes it$"):
        golden.main(write=False, path=tmp_path / "none.json")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, rewards):
    rewards += [0.5]
    with pytest.raises(UserError, match="cannot write"):
        golden.main(write=True, path=tmp_path / "nowhere" / "curve.json")


def test_the_kept_curve_is_of_the_run_that_the_command_makes():
    kept = read_golden(GOLDEN_FILE)
    assert kept.config == golden.golden_config().name
    assert len(kept.reward) == golden.golden_config().num_iterations == NUM_ITERATIONS
    assert max(kept.reward) - min(kept.reward) > 5 * kept.tolerance, "it would not see a change"
