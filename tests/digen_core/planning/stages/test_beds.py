"""Beds: what planning is worth where some devices are far from others."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deployments.cli import run
from deployments.shipped import RECIPES
from deployments.views.stages.beds import print_beds
from digen_core.config.load import load_config
from digen_core.planning.model_settings import settings_folder
from digen_core.planning.sizes import sizes_of
from digen_core.planning.stages import beds
from digen_core.planning.stages.alternatives import Case, Row, alternatives
from digen_core.planning.stages.beds import BEDS, FLUX, TRAJECTORY_BYTES, Bed, case_of, rows_of
from digen_core.planning.stages.blocks import chain_of
from digen_core.planning.stages.codecs import CODECS, INT8, INT8_INT4, NONE
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.placement import Stage
from digen_core.planning.stages.plans import Work, plan_of
from support.stages import chain_of_arrays

SMALL = Bed("4 devices at 2 sites", (2, 2), (1e3, 1e3), (50, 100), 4e10)


@pytest.mark.nightly
def test_the_chain_is_what_the_recipe_counts():
    again = {"train.gradient_checkpointing": True}
    config = load_config(RECIPES / "flow_grpo_flux_fast.toml", again)
    folder = settings_folder(config.model.path)
    assert chain_of(config, folder) == FLUX
    assert sizes_of(config, folder).trajectory_bytes == TRAJECTORY_BYTES


@pytest.mark.slow
def test_what_op_fence_is_worth_on_24_devices():
    rows = {row.name: row for row in rows_of(BEDS[0])}
    equal = rows["equal stages"].seconds
    assert equal / rows["OP-Fence"].seconds >= 5
    assert equal / rows["OP-Fence, int8/int4"].seconds >= 8
    assert set(rows) == {
        "equal stages",
        "stages by speed",
        "OP-Fence",
        "OP-Fence, int8",
        "OP-Fence, int8/int4",
        "one fence alone",
        "replicas",
        "one trains, others generate",
    }


UNPLANNED = {"equal stages", "stages by speed"}


@pytest.mark.parametrize(
    ("bed", "seed"),
    [
        (SMALL, 0),
        (SMALL, 1),
        *(pytest.param(bed, 0, marks=pytest.mark.nightly) for bed in BEDS),
    ],
    ids=lambda own: getattr(own, "title", str(own)),
)
def test_what_is_planned_is_never_slower_than_what_is_not(bed, seed):
    """Nor is OP-Fence with more codecs slower than with fewer."""
    rows = {row.name: row for row in rows_of(bed, seed, draws=1)}
    planned = {row.name: row for row in alternatives(case_of(bed, seed))}
    assert planned == {name: row for name, row in rows.items() if name not in UNPLANNED}
    best = min(row.seconds for row in planned.values())
    for name in UNPLANNED & rows.keys():
        assert best <= planned["OP-Fence"].seconds <= rows[name].seconds
    coded = [row.seconds for name, row in planned.items() if name.startswith("OP-Fence")]
    assert len(coded) == 3
    assert coded == sorted(coded, reverse=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_are_the_same_for_a_seed_and_say_what_crosses(seed):
    rows = rows_of(SMALL, seed, draws=1)
    assert len(rows) == 8
    assert rows == rows_of(SMALL, seed, draws=1)
    assert {row.crossing for row in rows} <= {
        "streams",
        "nothing",
        "gradients, versions",
        "versions, trajectories",
    }


def test_where_memory_is_not_enough_there_is_nothing():
    tight = replace(SMALL, memory=1e9)
    assert rows_of(tight, draws=1) == []
    assert list(alternatives(case_of(tight))) == []


def test_rows_are_means_of_draws():
    one, other = (rows_of(SMALL, seed, draws=1) for seed in (3, 4))
    both = rows_of(SMALL, 3, draws=2)
    for row, first, second in zip(both, one, other, strict=True):
        assert row.seconds == pytest.approx((first.seconds + second.seconds) / 2)


def test_a_bed_is_as_it_says():
    """Of 12 pairs: 1 Gb/s to one other device, slower links to all others."""
    network = case_of(BEDS[2], 5).network
    assert network.num_devices == 24
    assert (network.bandwidth == network.bandwidth.T).all()
    near = network.latency == network.latency.min()
    assert (near.sum(1) == 2).all()  # itself, and the other one
    apart = ~np.eye(24, dtype=bool)
    assert np.median(network.bandwidth[near & apart]) * 8e-6 == pytest.approx(1000, rel=0.3)
    assert np.quantile(network.bandwidth[~near] * 8e-6, 0.02) > 30
    assert np.quantile(network.bandwidth[~near] * 8e-6, 0.98) < 450


def two_devices(link: float) -> Network:
    shape = (2, 2)
    return Network(np.ones(2), np.full(2, 99.0), np.full(shape, link), np.zeros(shape))


@pytest.mark.parametrize(
    ("link", "codec"), [(2.0, NONE), (1.0, NONE), (0.9, INT8), (0.5, INT8), (0.4, INT8_INT4)]
)
def test_a_cut_has_the_mildest_codec_that_is_enough(link, codec):
    """Stages of 1 s there and 1 s back, and a byte: below 0.5 bytes/s nothing is enough."""
    chain = chain_of_arrays(np.ones(2), np.ones(2), np.ones(2), back=1.0)
    stages = [Stage(0, 0, 1), Stage(1, 1, 2)]
    plan = plan_of(chain, two_devices(link), stages, CODECS)
    assert plan.codecs == (codec,)
    assert plan.pipeline.there.links == pytest.approx([1 / link / codec.there])
    assert plan.pipeline.back.links == pytest.approx([1 / link / codec.back])
    assert plan_of(chain, two_devices(link), stages).codecs == (NONE,)


def test_work_by_hand():
    """5 samples in batches of at most 2: three, of 1, 2 and 2; 3 steps, and 10 pairs in fives."""
    work = Work(num_samples=5, num_steps=3, pairs_per_sample=2, batch=2)
    assert work.in_batches(5, float) == 5
    assert work.in_batches(5, lambda size: 1.0) == 3
    chain = chain_of_arrays(np.ones(2), np.ones(2), np.ones(2), back=2.0)
    plan = plan_of(chain, two_devices(1e9), [Stage(0, 0, 2)])
    assert plan.generation(work) == pytest.approx(3 * 5 * 2)
    assert plan.training(work) == pytest.approx(10 * 2 * 3)
    assert plan.estimate(work) == pytest.approx(plan.seconds(work))


def test_two_fences_by_hand():
    """Two pairs, each a fence that can hold all; between them 1 byte/s. 8 samples, 8 pairs."""
    near = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]], bool)
    network = Network(np.ones(4), np.full(4, 3.5), np.where(near, 1e9, 1.0), np.zeros((4, 4)))
    chain = chain_of_arrays(np.ones(4), np.ones(4), np.full(4, 1e6), back=2.0)
    blocks = tuple(replace(own, trained_bytes=0.125, sum_bytes=0.25) for own in chain.blocks)
    work = Work(num_samples=8, num_steps=1, pairs_per_sample=1, batch=8)
    rows = {
        row.name: row
        for row in alternatives(Case(replace(chain, blocks=blocks), network, work, 0.125))
    }
    step, pack = 2 * 9, 2 * 9 * 3  # of 8 samples: 8 portions, and one to fill the pipeline
    assert rows["one fence alone"].seconds == pytest.approx(step + pack, rel=1e-3)
    assert rows["OP-Fence"].num_devices == 2
    assert rows["OP-Fence"].crossing == "nothing"
    half = (2 * 5) * 4  # of 4 samples, step and pack
    assert rows["replicas"].seconds == pytest.approx(half + 1.5, rel=1e-3)
    assert rows["replicas"].crossing_bytes == 1.5
    far = rows["one trains, others generate"]
    assert far.seconds == pytest.approx(pack, rel=1e-3)
    assert far.crossing_bytes == 0.5 + 8 * 0.125


def test_simulate_prints_beds(monkeypatch, capsys):
    monkeypatch.setattr("deployments.views.stages.beds.BEDS", (SMALL,))
    assert run(["simulate", "--beds", "--seed", "2"]) == 0
    printed = capsys.readouterr().out
    assert "4 devices at 2 sites, 40 GB each: Mb/s 1000 inside, 50-100 between" in printed
    assert "…" not in printed
    assert max(map(len, printed.splitlines()[1:])) <= 80
    assert run(["simulate", "--beds", "--seed", "2", "--json"]) == 0
    (bed,) = json.loads(capsys.readouterr().out)
    assert bed["title"] == SMALL.title
    seconds = {row["name"]: row["seconds"] for row in bed["rows"]}
    assert f"{seconds['OP-Fence']:.1f}" in printed


def test_the_widest_rows_fit(capsys):
    row = Row("one trains, others generate", 9345.6, 48, 9.9e11, "versions, trajectories")
    print_beds([(BEDS[0], [row, replace(row, seconds=40.0)])])
    assert "versions, trajectories" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which scenario? For example: digen simulate B; or --beds"),
        (["B", "--beds"], "--beds is of no SCENARIO; beside it only --seed and --json count"),
        (["--beds", "--split", "2"], "--beds is of no SCENARIO"),
        (["--beds", "--seed", "-1"], "--seed -1"),
    ],
)
def test_beds_that_are_not_there_are_one_line(arguments, message, capsys):
    assert run(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_planning_of_stages_takes_no_torch():
    """But for what counts blocks: a plan starts at once."""
    folder = Path(beds.__file__).parent
    with_torch = {path.stem for path in folder.glob("*.py") if "import torch" in path.read_text()}
    assert with_torch == {"blocks", "operators"}
