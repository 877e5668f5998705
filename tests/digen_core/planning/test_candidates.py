"""Gangs to choose from: what is possible, what fits, and which is planned."""

from dataclasses import replace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import DeviceCosts, Linear
from digen_core.errors import ConfigError
from digen_core.models.image_size import read_settings
from digen_core.planning.candidates import candidates, leaves_gangs_open
from digen_core.planning.capacity import ShortageError
from digen_core.planning.cluster_plan import plan_candidates
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.memory import CONTEXT_BYTES, Memory
from digen_core.planning.model_settings import MODEL_CONFIGS

GB = 10**9
FLUX = read_settings(MODEL_CONFIGS / "FLUX.1-dev")

# 40 GB of weights; alone a sample takes 2 GB beside them, and a pair 30.
WHOLE = Memory(
    weights=40 * GB - CONTEXT_BYTES,
    adapters=0,
    text_encoders=0,
    vae=0,
    step=Linear(per_item=2 * GB),
    decode=Linear(),
    pack=Linear(per_item=30 * GB),
    gradient_sum=0,
    versions=0,
    state=0,
    step_copies=0,
    offload=frozenset(),
)


def memory_of(config: RunConfig, size: int) -> Memory:
    """Shards are parts of the weights, and degrees of what is kept of a pair."""
    degree = config.parallel.degree_of(size)
    weights = 40 * GB // (size if config.parallel.shard_weights else 1) - CONTEXT_BYTES
    return replace(WHOLE, weights=weights, pack=Linear(per_item=30 * GB / degree))


def cluster_of(*groups: dict) -> Cluster:
    sheet = {"kind": "h100", "count": 8, "tflops": 989.0, "capacity": 80.0}
    return Cluster.model_validate({"devices": [sheet | own for own in groups]})


def config_of(**parallel) -> RunConfig:
    model = {"family": "flux", "path": "black-forest-labs/FLUX.1-dev", "height": 512, "width": 512}
    rollout, train = {"group_size": 8, "fragment_size": 4}, {"pack_size": 2}
    tree = {"model": model, "rollout": rollout, "train": train, "parallel": parallel}
    return RunConfig.model_validate(tree)


def found_in(cluster: Cluster, config: RunConfig | None = None, counted=memory_of):
    return candidates(config or config_of(), cluster, FLUX, counted)


def shapes(found) -> set:
    return {
        (
            tuple((group.count, group.members) for group in own.cluster.devices),
            own.config.parallel.context_parallel,
        )
        for own in found
    }


def test_of_very_many_ways_those_of_one_size_are_tried():
    """Of eight groups there are 65,536 others, and of thirty more than anybody waits for."""
    alike = [{"kind": f"h100-{n}"} for n in range(30)]
    found = found_in(cluster_of(*alike, {"kind": "few", "count": 6}))
    sizes = {tuple(group.members for group in own.cluster.devices) for own in found}
    assert sizes == {(1,) * 31, (2,) * 31, *((size,) * 30 + (2,) for size in (4, 8))}


def test_all_sizes_pairs_of_sizes_and_degrees_are_there_once():
    found = found_in(cluster_of({"count": 4}))
    one, two = ((4, 1),), ((4, 2),)
    both, all_ = ((2, 1), (2, 2)), ((4, 4),)
    wholes = {(all_, 1), (all_, 2), (all_, 4)}
    assert shapes(found) == {(one, 1), (two, 1), (two, 2), (both, 1), (both, 2), *wholes}
    assert not any(own.config.parallel.shard_weights for own in found)
    kinds = [tuple(group.kind for group in own.cluster.devices) for own in found]
    assert set(kinds) == {("h100",), ("h100-2",), ("h100-4",), ("h100", "h100-2")}


def test_gangs_are_of_one_host():
    found = found_in(cluster_of({"count": 8, "hosts": ["a", "b"]}))
    groups = [group for own in found for group in own.cluster.devices]
    assert {group.members for group in groups} == {1, 2, 4}  # a host has four
    assert {(group.count, group.hosts) for group in groups} == {
        (8, ("a", "b")),
        (4, ("a",)),
        (4, ("b",)),
    }


@pytest.mark.parametrize(
    "own",
    [
        {"gang": 2},
        {"costs": {"step": {"per_item": 1.0}, "pack": {"per_item": 1.0}}},
        {"capacity": None},
        {"tflops": None, "gang": 1},
    ],
)
def test_what_the_file_says_stays(own):
    assert not leaves_gangs_open(cluster_of(own))
    assert leaves_gangs_open(cluster_of(own, {"kind": "l40s"}))


def test_two_open_groups_are_in_gangs_of_one_size_each():
    found = found_in(cluster_of({"roles": "trainer"}, {"kind": "l40s", "roles": "rollout"}))
    assert {len(own.cluster.devices) for own in found} == {2}
    sizes = {tuple(group.members for group in own.cluster.devices) for own in found}
    assert sizes == {(a, b) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8)}


def test_keys_of_the_config_stay():
    found = found_in(cluster_of({}), config_of(context_parallel=2))
    degrees = {own.config.parallel.context_parallel for own in found}
    assert degrees == {2}
    found = found_in(cluster_of({}), config_of(shard_weights=True))
    assert all(own.config.parallel.shard_weights for own in found)


def test_degrees_that_do_not_divide_are_left_out():
    """24 heads, 1024 tokens of a sample, 500 of its text: 4 divides them all, 8 does not."""
    model = config_of().model.model_copy(update={"max_sequence_length": 500})
    found = found_in(cluster_of({}), config_of().model_copy(update={"model": model}))
    assert {own.config.parallel.context_parallel for own in found} == {1, 2, 4}


def test_what_no_gang_can_share_is_one_line():
    model = config_of().model.model_copy(update={"max_sequence_length": 500})
    config = config_of(context_parallel=8).model_copy(update={"model": model})
    with pytest.raises(ConfigError, match="context_parallel is 8, which does not divide"):
        found_in(cluster_of({}, {"kind": "l40s", "gang": 8, "count": 16}), config)
    model = config_of().model.model_copy(update={"offload": ("transformer",)})
    config = config_of(shard_weights=True).model_copy(update={"model": model})
    with pytest.raises(ConfigError, match="names the transformer"):
        found_in(cluster_of({}), config)


def test_weights_are_sharded_only_if_nothing_else_fits():
    def large(config, size):
        return replace(memory_of(config, size), gradient_sum=60 * GB)

    found = found_in(cluster_of({"capacity": 90.0}), counted=large)
    assert found
    assert all(own.config.parallel.shard_weights for own in found)
    # 40 / n + 60 + 30 / degree <= 90: gangs of 2 with a degree of 2 do not.
    assert all(
        group.members > 2
        for own in found
        for group in own.cluster.devices
        if group.roles != "rollout"
    )
    with pytest.raises(ShortageError, match="kind h100, of 20 GB, lacks the memory"):
        found_in(cluster_of({"capacity": 20.0}), counted=large)


def test_memory_is_counted_once_for_what_the_members_do():
    counted = []

    def counting(config, size):
        counted.append((config.parallel.shard_weights, config.parallel.degree_of(size), size))
        return memory_of(config, size)

    found_in(cluster_of({"count": 16}), counted=counting)
    assert sorted(counted) == [(False, degree, degree) for degree in (1, 2, 4, 8)]


def test_a_share_takes_as_many_pairs_as_a_device_would():
    for own in found_in(cluster_of({})):
        parallel = own.config.parallel
        shares = max(g.members // parallel.degree_of(g.members) for g in own.cluster.devices)
        assert own.config.train.pack_size == 2 * shares


def priced(step: float, overhead: float):
    """Costs in which each member adds some seconds to each step and pack."""

    def of(candidate):
        devices = []
        for group in candidate.cluster.devices:
            line = Linear(fixed=overhead * group.members, per_item=step / group.members)
            costs = DeviceCosts(step=line, pack=line)
            devices.append(group.model_copy(update={"costs": costs}))
        return candidate.cluster.model_copy(update={"devices": tuple(devices)})

    return of


@pytest.mark.nightly
def test_the_best_gangs_are_planned_first():
    found = found_in(cluster_of({}))
    # All but free to talk: the members of a gang do as much together as by themselves. Alone is
    # simpler, so what is not faster by more than half a percent for each gang comes after it.
    best, *others = plan_candidates(found, priced(1.0, 0.1), None)
    assert {group.members for group in best.cluster.devices} == {1}
    assert best.worth == min(plan.worth for plan in (best, *others))
    assert len({id(plan.candidate) for plan in (best, *others)}) == 3
    seconds = [plan.own.seconds for plan in others]
    assert seconds == sorted(seconds)


@pytest.mark.ci
def test_where_a_pair_fits_no_single_device_gangs_train():
    """32 GB of weights and of a pair fit two cards that share its tokens."""
    found = found_in(cluster_of({"capacity": 60.0}))
    for plan in plan_candidates(found, priced(1.0, 0.01), None):
        job, num_rollout = plan.own.job, plan.own.plan.choice.num_rollout
        training = [d for d in job.cluster(num_rollout) if "trainer" in d.roles]
        assert training
        assert all(device.size > 1 for device in training)
        assert plan.candidate.config.parallel.context_parallel > 1
        if any(device.size == 1 for device in job.cluster(num_rollout)):
            assert not plan.own.plan.choice.assistants  # one that generates alone cannot train
