"""digen simulate: its table, its JSON, and what users get wrong."""

import json

import pytest

from deployments.cli import run
from deployments.shipped import SCENARIOS

SMALL = """\
devices = 4
prompts = 6
group_size = 2
trained_per_group = 2
steps = 3
trained_steps = 2
fragment_size = 1
pack_size = 2
d0 = 0.5
d1 = 0.5
a = 1.0
c = 1.0
switch_colocated = 4.0
jitter = 0.02
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def test_json_has_an_object_for_each_layout(small, capsys):
    assert run(["simulate", small, "--json"]) == 0
    rows = {row["layout"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [
        "colocated",
        "colocated-strong",
        "disaggregated",
        "gap",
        "tsp",
        "tag",
        "tcss",
        "elastic",
    ]
    assert rows["colocated"]["over_colocated"] == rows["colocated-strong"][
        "over_colocated_strong"
    ] == 1.0  # fmt: skip
    for row in rows.values():
        assert row["rollout"] + row["trainers"] == 4
        # 12 fragments of 3 s, 24 pairs in packs of two of 3 s, on four devices.
        assert row["floor"] == (36 + 36) / 4
        assert row["share_of_floor"] == pytest.approx(row["floor"] / row["seconds"])
        assert row["seconds"] * row["over_colocated"] == pytest.approx(rows["colocated"]["seconds"])
        assert row["lower_bound"] <= row["seconds"] * 1.02
        assert 0 < row["busy_share"] <= 1
    # Colocated: 9 s, packs of one pair 12 s, switches 4 s, with jitter.
    assert rows["colocated"]["seconds"] == pytest.approx(25, rel=0.03)


def test_the_same_seed_prints_the_same(small, capsys):
    outputs = []
    for seed in ("1", "1", "2"):
        assert run(["simulate", small, "--layout", "+tsp", "--seed", seed, "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert json.loads(outputs[0])[0]["layout"] == "tsp"


def test_the_table_fits_80_columns(small, capsys):
    assert run(["simulate", small, "--layout", "colocated-strong", "elastic", "--split", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert [line.split()[:2] for line in lines[2:]] == [
        ["colocated-strong", "both"],
        ["elastic", "2:2"],
    ]


def test_brackets_in_a_description_are_text(small, tmp_path, capsys):
    (tmp_path / "own.toml").write_text(f'description = "a [/b] c"\n{SMALL}')
    assert run(["simulate", str(tmp_path / "own.toml"), "--layout", "gap"]) == 0
    assert capsys.readouterr().out.startswith("a [/b] c\n")


def test_options_are_kept(small, capsys):
    options = "--layout elastic --split 2 --helpers 1 --assistants 2 --stale-share 0.5 --json"
    assert run(["simulate", small, *options.split()]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    kept = [row[key] for key in ("rollout", "trainers", "helpers", "assistants", "stale_share")]
    assert kept == [2, 2, 1, 2, 0.5]


def test_updates_are_those_of_a_file_that_says_so(small, tmp_path, capsys):
    own = tmp_path / "own.toml"
    own.write_text(f'{SMALL}updates = 2\ndealt_by = "samples"\n')
    outputs = []
    given = ["--updates", "2", "--dealt-by", "samples"]
    for arguments in ([small, *given], [str(own)], [small]):
        assert run(["simulate", *arguments, "--layout", "gap", "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "which scenario? For example: digen simulate B; or --beds"),
        ("B --beds", "--beds is of no SCENARIO; beside it only --seed and --json count"),
        ("--beds --iterations 9", "beside it only --seed and --json count"),
        (
            "Z",
            "there is no scenario Z; use A, A2, B, B2, C, D, E, F, G, H or a TOML file like",
        ),
        ("no.toml", "cannot read the scenario no.toml: No such file"),
        ("B --layout tps", "there is no layout tps; did you mean tsp?"),
        ("B --layout auto", "there is no layout auto; use colocated, colocated-strong,"),
        ("B --split 32", "--split is 32; of 32 devices use 1 to 31"),
        ("B --split 0", "--split is 0; of 32 devices use 1 to 31"),
        ("B --helpers -1", "--helpers is -1; use 0 to 24"),
        ("B --split 30 --helpers 3", "--helpers is 3; use 0 to 2 with --split 30"),
        ("B --split 3 --assistants 4", "--assistants is 4; use 0 to 3 with --split 3"),
        ("B --helpers 20 --assistants 13", "--helpers 20 and --assistants 13 are more than the 32"),
        ("B --stale-share 1.5", "--stale-share is 1.5; use 0 to 1"),
        ("B --updates 0", "--updates is 0, of 1 epoch(s); use 1 to 1000, so many that each"),
        ("D --updates 7", "each epoch's share the 8 groups equally"),
        ("D --updates 7 --dealt-by samples", "share the 128 samples equally"),
        ("B --dealt-by epochs", 'Invalid value "epochs" for --dealt-by'),
        ("--beds --updates 2", "beside it only --seed and --json count"),
        (
            "B --iterations 1",
            "--iterations is 1 and --seed 0; use 2 <= iterations <= 1000, since each is simulated",
        ),
        ("B --sed 1", "Unknown option: --sed. Did you mean --seed?"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert run(["simulate", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_wrong_file_is_one_line(small, capsys):
    with open(small, "a") as file:
        file.write("pusch = 3\n")
    assert run(["simulate", small]) == 2
    assert "small.toml: unknown key pusch; did you mean push?" in capsys.readouterr().err


def test_the_help_shows_an_example_and_the_shipped_scenarios(capsys):
    assert run(["simulate", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example: digen simulate B" in text
    assert all(path.stem in text for path in SCENARIOS.glob("*.toml"))


def test_a_file_of_another_kind_is_told_as_that(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my run.toml").write_text("[rollout]\ngroup_size = 4\n")
    (tmp_path / "gpus.toml").write_text('[[devices]]\nkind = "gpu"\ncount = 2\n')
    kinds = {"my run.toml": "config", "gpus.toml": "cluster", small: "scenario"}
    calls = {
        "scenario": lambda path: ["simulate", path],
        "config": lambda path: ["plan", path, "--cluster", "2-cores"],
        "cluster": lambda path: ["cluster", "show", path],
    }
    for noun, call in calls.items():
        for path, kind in kinds.items():
            if kind != noun:
                assert run(call(path)) == 2
                told = f"digen: {path} describes a {kind}, not a {noun}; give a {noun}"
                assert capsys.readouterr().err.startswith(told)
    run(["simulate", "my run.toml"])
    assert "digen plan 'my run.toml' --cluster CLUSTER" in capsys.readouterr().err
