"""The contract for devices that are gangs: the weights of the serial loop, whatever they share."""

from collections import Counter

import pytest

from digen_core.config.run import RunConfig
from support.gang_runs import SHARDS, TOKENS, GangCase, cluster_of, device_of
from support.given import write_samples
from support.gpu import require_gpus
from support.layout_runs import (
    ODD,
    RELATIVE,
    check_skips,
    check_weights,
    marked,
    run_case,
)
from support.runs import merged

pytestmark = pytest.mark.slow

ALL_WEIGHTS = {"train.lora": None}
DELTAS = {"schedule.push": "delta"}
KL = {"algorithm.kl_coefficient": 0.1}
GENERATED = KL | {"schedule.reference": "generation"}
BATCHES = {"rollout.batch_size": 8}


CASES = [
    GangCase("tsp"),
    GangCase("disaggregated", settings=TOKENS | SHARDS),
    GangCase("elastic", helping=True, settings=ALL_WEIGHTS | SHARDS),
    GangCase("tsp", rollout="single", settings=TOKENS),
    GangCase("tsp", trainers=("single",), settings=TOKENS),
    GangCase("colocated", settings=ALL_WEIGHTS),
    GangCase("colocated-strong", settings=TOKENS),
    GangCase("gap", settings=ALL_WEIGHTS | TOKENS),
    GangCase("tag", helping=True, settings=SHARDS),
    GangCase("elastic", helping=True, settings=TOKENS | SHARDS),
    GangCase("tsp", rollout="single", trainers=("gang-0", "gang-1")),
    GangCase("tsp", rollout="single", trainers=("gang-0", "gang-1"), settings=ALL_WEIGHTS | SHARDS),
    GangCase("tsp", rollout="gang-0", trainers=("single", "gang-1"), settings=SHARDS),
    GangCase("tsp", settings=TOKENS, dtype="float32"),
    GangCase("tsp", settings=ALL_WEIGHTS | SHARDS | DELTAS),
    GangCase("gap", trainers=("gang-1", "single"), settings=ALL_WEIGHTS | DELTAS),
    GangCase("colocated", settings=ALL_WEIGHTS | SHARDS | KL),
    GangCase("elastic", helping=True, settings=TOKENS | SHARDS | GENERATED),
    GangCase("tsp", trainers=("single", "gang-1"), settings=ALL_WEIGHTS | GENERATED),
    GangCase("tsp", settings=TOKENS | SHARDS | BATCHES),
    GangCase("elastic", helping=True, settings=SHARDS | BATCHES | GENERATED),
    GangCase("colocated", fragment=1, settings=BATCHES),
]
EXPERTS = [
    GangCase("tsp", rollout="single"),  # whose packs members share by rows
    GangCase("elastic", helping=True, settings=TOKENS | SHARDS),
    GangCase("tsp", settings=ALL_WEIGHTS | SHARDS, dtype="float32"),
]


@pytest.fixture(scope="module")
def address(prefect_backend):
    """Address of a cluster of two gangs of two workers, and a worker that is in none."""
    with cluster_of("gang-0", "gang-1", "single") as address:
        yield address


@pytest.mark.ci
@pytest.mark.parametrize("case", marked(CASES, (1,), "layouts"), ids=str)
def test_gangs_give_the_weights_of_the_serial_loop(case, tree, address, monkeypatch):
    run = run_case(case, tree, address, monkeypatch)
    check_weights(run)
    tasks = Counter(span.kind for span in run.spans)
    assert tasks["train"], "a task of a gang shows once, as its leader's"
    assert {span.device for span in run.spans} <= {device.name for device in case.devices}


@pytest.fixture(scope="module")
def two_gpus():
    """Two GPUs, over which the gangs' members are dealt."""
    require_gpus("cuda", 2)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_gangs_of_gpus_give_the_weights_of_the_serial_loop(
    two_gpus, case, tree, address, monkeypatch
):
    check_weights(run_case(case, tree, address, monkeypatch, **{"model.device": "cuda"}))


@pytest.mark.parametrize("case", marked(EXPERTS, (), "layouts"), ids=str)
def test_gangs_of_two_experts_give_the_weights_of_the_serial_loop(
    case, tree, address, monkeypatch, tiny_families
):
    """Packs have pairs of both: all members compute the same expert at a time."""
    model = {
        "model.family": "wan",
        "model.path": tiny_families["wan-a14b"],
        "model.guidance_scale": 3.0,
        "model.guidance_scale_2": 2.0,
        "algorithm.trained_fraction": 0.75,  # of 4 steps one is of the second expert
    }
    run = run_case(case, tree, address, monkeypatch, **model)
    check_weights(run, 1e-4)  # parts of Wan are float32


@pytest.mark.parametrize("case", marked(CASES[:3], (), "layouts"), ids=str)
def test_gangs_compare_the_samples_of_a_group(case, tree, address, monkeypatch):
    check_weights(run_case(case, tree, address, monkeypatch, rewards=RELATIVE))


@pytest.mark.parametrize("case", marked(CASES[:4], (), "layouts"), ids=str)
def test_gangs_drop_and_skip_what_the_serial_loop_does(case, tree, address, monkeypatch):
    check_skips(run_case(case, tree, address, monkeypatch, **ODD))


@pytest.mark.parametrize("case", marked(CASES[1:3], (), "layouts"), ids=str)
def test_gangs_take_samples_from_files(case, tree, address, monkeypatch, tmp_path):
    """The leader encodes them; what margins take all members compute."""
    dpo = {"type": "dpo", "num_levels": 2, "trained_fraction": 0.75}
    settings = {**write_samples(tmp_path), "algorithm": dpo}
    run = run_case(case, tree, address, monkeypatch, **settings)
    check_weights(run)
    assert {span.kind for span in run.spans} >= {"samples", "score", "train"}


@pytest.mark.parametrize("case", marked(CASES[1:3], (), "layouts"), ids=str)
def test_gangs_go_on_from_what_a_step_predicted(case, tree, address, monkeypatch):
    """The leader hands each member its samples' part of it."""
    nft = {"type": "diffusion_nft", "trained_fraction": 0.75}
    settings = {"rollout.solver": "dpmpp_2m", "algorithm": nft}
    check_weights(run_case(case, tree, address, monkeypatch, **settings))


def _measuring() -> dict[str, int]:
    """Return how many members measure a model of no run together, by the run of each engine."""
    from tasks.worker.engine import _engines

    return {run: own.gang.size for run, own in _engines.items()}


@pytest.mark.ci
def test_a_gang_is_measured_as_one_for_the_choice_of_a_layout(tree, address):
    """Also if it is still formed for the run before: its leader alone would wait for the others."""
    from distributed import Client

    from flows.runtime.scheduling import measured_costs
    from tasks.cluster.presence import present_workers

    config = RunConfig.model_validate(merged(tree, SHARDS | {"schedule.layout": "auto"}))
    with Client(address, set_as_default=False) as client:
        devices = [device_of(name) for name in ("gang-0", "single")]
        for _ in range(2):
            costs = measured_costs(config, client, devices)
        assert {own.kind for own in devices} == costs.kinds.keys()
        found = {own.name: own for own in present_workers(client).values()}
        gang = [found["gang-0"].address, *found["gang-0"].followers.values()]
        single = found["single"].address
        measuring = client.run(_measuring, workers=[*gang, single])
    assert measuring == {**{at: {"measure": 2} for at in gang}, single: {"measure": 1}}
