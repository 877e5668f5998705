"""Emulated devices: they stand where real ones do, and wait for what the cost model says."""

import inspect
import os
import threading
import time
from itertools import groupby, pairwise
from statistics import median

import dask
import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import Link, Sent
from digen_core.errors import UserError
from digen_core.planning.search import Choice
from digen_core.sim.bounds import floor_of
from digen_core.sim.kinds import DeviceKind
from digen_core.sim.report import OCCUPYING
from digen_core.sim.scenario import Scenario
from flows.emulate import emulated_config
from support.waiting import comes_to
from tasks import decoding, rollout, setup, train, versions
from tasks.cluster.emulated import REWARD_SERVERS, emulated_cluster
from tasks.cluster.listening import own_tls_settings
from tasks.cluster.presence import present_workers
from tasks.emulated import work
from tasks.emulated.work import RewardServers
from tasks.emulation import EMULATED
from tasks.workers import EmulatedWorkers, RealWorkers

REAL = (
    setup.load_model,
    setup.count_tokens,
    versions.start_state,
    rollout.encode,
    rollout.denoise_steps,
    decoding.decode_and_score,
    train.train_pack,
    train.share_sum,
    train.reduce,
    versions.step,
    versions.publish,
    versions.push_weights,
)


TWO_SITES = {
    "devices": 5,
    "kinds": {
        "far": DeviceKind(count=3, site="b", pack=2.0),
        "near": DeviceKind(count=2, site="a"),
    },
    "links": (Link(between=("a", "b"), bytes_per_second=20e6, latency=0.1),),
    "sent": Sent(version=30e6, transition=2e6, condition=5e6, gradient_sum=10e6),
}
"""A version takes 1.5 s to cross, what is trained of a sample at a step 0.1 s."""

GANGS = {"pair": DeviceKind(count=4, gang=2, hosts=2)}
ROOM = {"four": DeviceKind(count=2, gang=4, hosts=2)}


@pytest.fixture
def scenario() -> Scenario:
    """Four groups of two fragments: a fragment takes 1 s, a pack of four pairs 0.8 s."""
    return Scenario(
        devices=4,
        prompts=4,
        group_size=2,
        trained_per_group=2,
        steps=3,
        trained_steps=2,
        fragment_size=1,
        pack_size=4,
        d0=0.1,
        d1=0.2,
        vae=0.1,
        a=0.4,
        c=0.1,
        optimizer_step=0.3,
        reward_seconds=0.2,
        reward_servers=2,
        push=0.5,
        switch_colocated=1.0,
        jitter=0.05,
    )


@pytest.fixture
def config(scenario, tmp_path):
    return emulated_config(scenario, Choice("tsp", 2), tmp_path, num_iterations=3, seed=7)


def test_a_scenario_can_be_made_slower(scenario):
    slow, original = scenario.scaled(3.0), scenario.costs(2)
    assert floor_of(slow) == pytest.approx(3 * floor_of(scenario))
    costs = slow.costs(2)
    assert costs.kinds["default"].fragment(1, 3) == pytest.approx(3 * 1.0)
    assert costs.kinds["default"].pack(4) == pytest.approx(3 * 0.8)
    for name in ("reward", "optimizer_step", "push", "switch_to_rollout", "switch_to_trainer"):
        assert getattr(costs, name) == pytest.approx(3 * getattr(original, name))
    assert slow.jitter == scenario.jitter


def test_each_real_task_has_one_of_its_name_and_parameters(config):
    for real in REAL:
        body = EmulatedWorkers(config).body(real)
        assert body.name == real.name
        parameters = list(inspect.signature(real.fn).parameters)
        assert list(inspect.signature(body.fn).parameters) == parameters
        assert RealWorkers(RunConfig()).body(real) is real
    assert set(EMULATED) == {real.name for real in REAL} | {"switch"}


def test_only_work_holds_the_device(config):
    for kind in ("denoise", "train", "step", "switch"):
        assert EmulatedWorkers(config).place(kind, "rollout-1") == ("rollout-1", {"device": 1})
    for kind in ("encode", "reduce", "publish", "push"):
        assert EmulatedWorkers(config).place(kind, "rollout-1") == ("rollout-1", {})
    assert EmulatedWorkers(config).place("score", "rollout-1") == (REWARD_SERVERS, {})
    assert RealWorkers(RunConfig()).place("score", "rollout-1") == ("rollout-1", {})


def test_jitter_is_that_of_the_work(config):
    first = config.factor("denoise", 0, 1, 0, 2)
    assert config.factor("denoise", 0, 1, 0, 2) == first
    others = [("denoise", 0, 1, 0, 1), ("decode", 0, 1, 0, 2), ("denoise", 1, 1, 0, 2)]
    assert len({first, *(config.factor(*other) for other in others)}) == 4
    factors = [config.factor("train", 0, index) for index in range(2000)]
    assert sum(factors) / 2000 == pytest.approx(1.0, abs=0.005)  # 4.5 standard errors
    steady = config.scenario.model_copy(update={"jitter": 0.0})
    steady = config.model_copy(update={"scenario": steady})
    assert steady.factor("train", 0, 1) == 1.0


def test_reward_servers_score_so_many_samples_at_a_time(monkeypatch):
    began, together = [], []

    def score(seconds):
        began.append(seconds)
        together.append(comes_to(lambda: len(began) > 1))
        time.sleep(seconds)

    monkeypatch.setattr(work, "sleep", score)
    started = time.monotonic()
    RewardServers(2).score((0, 0), [0.5, 0.5, 0.5])
    assert together == [True] * 3
    assert time.monotonic() - started >= 1.0, "the third waited for a server"


def test_reward_servers_take_the_first_group_first(monkeypatch):
    """A group is told by its seconds."""
    began, go_on = [], threading.Event()
    monkeypatch.setattr(work, "sleep", lambda group: began.append(group) or go_on.wait(60))
    servers = RewardServers(1)
    threads = [threading.Thread(target=servers.score, args=((0, g), [g])) for g in (4, 3, 1)]
    threads[0].start()
    assert comes_to(lambda: began)  # 4 is alone when it comes
    for thread in threads[1:]:
        thread.start()
    assert comes_to(lambda: servers._waiting.qsize() == 2)
    go_on.set()
    for thread in threads:
        thread.join()
    assert began == [4, 1, 3]


def test_best_of_n_is_refused(scenario, tmp_path):
    scenario = scenario.model_copy(update={"trained_per_group": 1})
    with pytest.raises(UserError, match="trained_per_group is 1 of group_size 2; "):
        emulated_config(scenario, Choice("tsp", 2), tmp_path, num_iterations=3)


@pytest.mark.slow
@pytest.mark.layouts
@pytest.mark.parametrize(
    ("choice", "changes"),
    [
        (Choice("colocated", None), {}),
        (Choice("tsp", 2), {}),
        (Choice("tsp", 3), {"pulls_at_once": 1}),
        (Choice("tsp", 2), {"pulls_at_once": 1, "gradient_sum": 0.2, "kinds": GANGS}),
        (Choice("tsp", 1), {"devices": 2, "kinds": ROOM}),
        (Choice("tsp", 2), {"group_steps": (3, 2)}),  # of which two, and one, are trained
    ],
    ids=[
        "colocated",
        "tsp",
        "tsp with all weights",
        "gangs on two hosts with all weights",
        "gangs of four stages",
        "tsp with groups of their own steps",
    ],
)
def test_a_run_takes_what_its_simulation_says(choice, changes, scenario, tmp_path, prefect_backend):
    from deployments.bench.layouts import row_of, run_emulated

    scenario = scenario.model_copy(update=changes)
    pulls = scenario.pulls_at_once
    slow = scenario.scaled(2.0)  # so that the machine's own work is small beside it
    config = emulated_config(slow, choice, tmp_path, num_iterations=2, steps_per_task=1)
    records, schedule = run_emulated(config)
    spans = spans_of(records)
    by_kind = {}
    for span in spans:
        by_kind.setdefault(span.kind, []).append(span)
    work = scenario.workload
    steps = work.group_steps or (3,) * 4
    assert len(by_kind["denoise"]) == 2 * 2 * sum(steps)
    late = []
    for span in by_kind["denoise"]:
        place = (span.iteration, span.group, span.fragment)
        seconds = 0.6 * config.factor("denoise", *place, span.first_step)
        if span.end_step == steps[span.group]:
            seconds += 0.2 * config.factor("decode", *place)
        late.append(span.ended - span.started - seconds)
    assert min(late) >= -1e-4
    assert median(late) < 0.05
    assert {span.device for span in by_kind["score"]} == {REWARD_SERVERS}
    for iteration in (0, 1):
        packs = [span for span in by_kind["train"] if span.iteration == iteration]
        assert sum(span.num_items for span in packs) == sum(work.group_trained or (2,) * 4) * 2
    for span in by_kind["push"]:
        waits = span.version > 0 and "rollout" in config.devices[span.device].roles
        assert span.ended - span.started >= (1.0 if waits else 0.0)
    check_reductions(by_kind["reduce"], config)
    if pulls and choice.num_rollout == 3:
        first, second, third = sorted(s.ended for s in by_kind["push"] if s.version == 1)[-3:]
        assert second - first >= 1.0, "the trainer serves one at a time"
        assert third - second < 0.5, "and then the first serves, too"
    assert ("switch" in by_kind) == (choice.layout == "colocated")
    for device in config.devices:
        check_order([span for span in spans if span.device == device])
    row = row_of(scenario, choice, schedule, records, time_scale=2.0, seed=0)
    # Without the moments in which a busy machine keeps devices waiting for a task that is ready.
    seconds = row.seconds * (1 - row.idle["orchestration"])
    assert seconds == pytest.approx(row.predicted, rel=0.25)


@pytest.mark.slow
@pytest.mark.layouts
@pytest.mark.parametrize("choice", [Choice("disaggregated", 3), Choice("tsp", 3)], ids=str)
def test_what_crosses_a_link_takes_what_a_simulation_says(
    choice, scenario, tmp_path, prefect_backend
):
    """Three devices generate at a site, far from the two that train."""
    from deployments.bench.layouts import row_of, run_emulated

    scenario = scenario.model_copy(update=TWO_SITES)
    scale = 3.0
    config = emulated_config(
        scenario.scaled(scale), choice, tmp_path, num_iterations=2, steps_per_task=1
    )
    records, schedule = run_emulated(config)
    pushes = [span for span in spans_of(records) if span.kind == "push" and span.version == 1]
    far = [span for span in pushes if config.devices[span.device].site == "b"]
    assert sorted(span.num_bytes // 10**6 for span in far) == [0, 0, 30], "it crosses once"
    first = max(far, key=lambda span: span.num_bytes)
    assert first.ended - first.started >= scale * (1.5 + 0.1 + 0.5)
    assert all(span.started >= first.ended for span in far if span is not first)
    assert all(span.ended - span.started >= scale * 0.5 for span in far)
    (reduced,) = (s for s in spans_of(records) if s.task == "reduce" and s.iteration == 1)
    assert reduced.ended - reduced.started < scale * 0.2, "both trainers are at one site"
    row = row_of(scenario, choice, schedule, records, time_scale=scale, seed=0)
    measured, predicted = row.crossed["a-b"]
    # A version, four prompts and 16 transitions: what is needed twice is near already.
    assert predicted <= 30e6 + 2 * 4 * 5e6 + 16 * 2e6
    assert 30e6 + 4 * 5e6 + 16 * 2e6 <= measured <= 1.001 * predicted
    # On a quiet machine they are within 5%.
    seconds = row.seconds * (1 - row.idle["orchestration"])
    assert seconds == pytest.approx(row.predicted, rel=0.25)


@pytest.mark.slow
@pytest.mark.layouts
@pytest.mark.parametrize("choice", [Choice("disaggregated", 3), Choice("tag", 2, 2)], ids=str)
def test_batches_take_what_a_simulation_says(choice, scenario, tmp_path, prefect_backend):
    """Of two fragments: what is fixed of a step, half of one here, comes once for both."""
    from deployments.bench.layouts import row_of, run_emulated

    scenario = scenario.model_copy(update={"batch_size": 2, "d0": 0.2, "prompts": 8})
    config = emulated_config(
        scenario.scaled(2.0), choice, tmp_path, num_iterations=2, steps_per_task=1
    )
    records, schedule = run_emulated(config)
    work = [span for span in spans_of(records) if span.kind == "denoise"]
    assert {span.num_items for span in work} >= {2}
    done = [(s.iteration, s.first_step, *own) for s in work for own in s.fragments]
    assert len(done) == len(set(done)) == 2 * 3 * 8 * 2, "each step of each fragment once"
    row = row_of(scenario, choice, schedule, records, time_scale=2.0, seed=0)
    seconds = row.seconds * (1 - row.idle["orchestration"])
    assert seconds == pytest.approx(row.predicted, rel=0.25)


@pytest.mark.slow
@pytest.mark.layouts
def test_what_is_late_goes_on_elsewhere(scenario, tmp_path, prefect_backend):
    """Of three devices that generate one takes eight times as long as anybody knows."""
    from deployments.bench.layouts import row_of, run_emulated

    kinds = {"slow": DeviceKind(count=1, unforeseen=8.0), "rest": DeviceKind(count=3)}
    scenario = scenario.model_copy(update={"kinds": kinds, "steps": 8})
    choice = Choice("disaggregated", 3)
    slow = scenario.scaled(2.0)
    config = emulated_config(slow, choice, tmp_path, num_iterations=2, steps_per_task=1)
    records, schedule = run_emulated(config)
    work = [span for span in spans_of(records) if span.kind == "denoise"]
    assert len(work) == 2 * 8 * 8, "no step is done twice"
    devices = {(s.iteration, s.group, s.fragment): set() for s in work}
    for span in work:
        devices[span.iteration, span.group, span.fragment].add(span.device)
    moved = [place for place, own in devices.items() if len(own) > 1]
    assert {iteration for iteration, *_ in moved} == {0, 1}
    assert all("rollout-0" in devices[place] for place in moved), "the first one is slow"
    row = row_of(scenario, choice, schedule, records, time_scale=2.0, seed=0)
    seconds = row.seconds * (1 - row.idle["orchestration"])
    assert seconds == pytest.approx(row.predicted, rel=0.25)


def spans_of(records):
    return [span for record in records for span in record.spans]


def check_reductions(spans, config):
    """The sums of the other trainers are brought one after the other."""
    num_trainers = sum("trainer" in device.roles for device in config.devices.values())
    seconds = config.scenario.gradient_sum * (num_trainers - 1)
    assert all(s.ended - s.started >= seconds for s in spans if s.task == "reduce")
    assert any(s.task == "reduce" for s in spans)


def check_order(spans):
    """A device does one thing at a time, and a fragment after the other."""
    work = sorted((span for span in spans if span.kind in OCCUPYING), key=lambda span: span.started)
    assert all(before.ended <= after.started for before, after in pairwise(work))
    fragments = [(s.iteration, s.group, s.fragment) for s in work if s.kind == "denoise"]
    assert len([key for key, _ in groupby(fragments)]) == len(set(fragments))


@pytest.mark.nightly
def test_each_member_of_a_gang_is_a_process_on_the_host_of_its_leader(scenario):
    from distributed import Client

    scenario = scenario.model_copy(update={"kinds": GANGS})
    devices = scenario.cluster(3)
    with (
        emulated_cluster(devices, scenario.hosts) as address,
        dask.config.set(own_tls_settings(tls=True)),
        Client(address, set_as_default=False) as client,
    ):
        present = {found.name: found for found in present_workers(client).values()}
        hosts = [present[device.name].address.split(":")[1] for device in devices]
        assert hosts == ["//127.0.0.1", "//127.0.0.1", "//127.0.0.2", "//127.0.0.2"]
        assert not any(present[device.name].lacks for device in devices)
        assert len(set(client.run(os.getpid).values())) == 9  # with that of the reward servers


@pytest.mark.slow
@pytest.mark.layouts
def test_a_switch_at_the_end_is_heard_though_no_other_iteration_is_open(
    scenario, tmp_path, prefect_backend, monkeypatch
):
    from deployments.bench.layouts import run_emulated
    from flows.runtime.iterations.runs import IterationRuns

    open_until = IterationRuns.open_until

    def open_late(runs, index):
        if not any(thread.is_alive() for thread in runs._threads):
            open_until(runs, index)

    monkeypatch.setattr(IterationRuns, "open_until", open_late)
    choice = Choice("colocated", None)
    config = emulated_config(scenario.scaled(0.3), choice, tmp_path, num_iterations=2)
    records, _ = run_emulated(config)
    switches = [span.iteration for span in spans_of(records) if span.kind == "switch"]
    assert switches == [0] * 8 + [1] * 8  # each device turns twice an iteration
