"""A chain, cards and a cluster for tests of gangs in stages."""

from dataclasses import replace
from typing import Any

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.planning.cluster_plan import ClusterPlan, plan_candidates
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.memory import CONTEXT_BYTES, Memory
from digen_core.planning.sizes import Sizes, sent_of
from digen_core.planning.stages.candidates import staged_candidates
from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.codecs import NONE
from support.stages import chain_of_arrays

GB = 10**9
CONTEXT = CONTEXT_BYTES / GB
CHAIN = chain_of_arrays(np.full(8, 1e12), np.full(8, 1.0 * GB), np.full(8, 1e7))
SIZES = Sizes(
    parameters=4 * GB,
    trained_parameters=1,
    trains_all=False,
    weight_bytes=8 * GB,
    push_bytes=4,
    step_flops=8 * 10**12,
    pair_flops=24 * 10**12,
    decode_flops=10**12,
    latent_bytes=1,
    velocity_bytes=0,
    trajectory_bytes=1,
    embedding_bytes=1,
)
LARGE = {"kind": "large", "count": 4, "tflops": 200, "capacity": 6 + CONTEXT}
SMALL = {"kind": "small", "count": 4, "tflops": 100, "capacity": 3 + CONTEXT}


def cluster_of(*groups: dict[str, Any], network: float = 10.0, **others: Any) -> Cluster:
    tree = {"devices": groups, "network": network, "mfu_train": 0.5, "mfu_denoise": 1.0}
    return Cluster.model_validate(tree | others)


WHOLE = Memory(
    weights=0,
    adapters=0,
    text_encoders=0,
    vae=0,
    step=Linear(),
    decode=Linear(),
    pack=Linear(),
    gradient_sum=0,
    versions=0,
    state=0,
    step_copies=0,
    offload=frozenset(),
)


JOB = RunConfig.model_validate(
    {
        "model": {"dtype": "bfloat16"},
        "rollout": {
            "group_size": 4,
            "fragment_size": 4,
            "prompts_per_iteration": 4,
            "num_steps": 10,
        },
        "train": {"pack_size": 2},
    }
)
HERE, THERE = LARGE | {"site": "here"}, LARGE | {"kind": "far", "site": "there"}
LIGHT = replace(SIZES, trained_parameters=10**7, push_bytes=4 * 10**7, trajectory_bytes=10**6)
HEAVY = replace(LIGHT, trained_parameters=10**9)  # sums of 4 GB; versions are small deltas
WHOLE_VERSIONS = replace(HEAVY, push_bytes=4 * 10**9)
WEAK = {"kind": "weak", "count": 9, "tflops": 60, "capacity": 1.2 + CONTEXT, "site": "there"}


def cluster_with(gbit: float, *groups: dict[str, Any]) -> Cluster:
    """A cluster of two sites, here and there."""
    link = {"between": ("here", "there"), "gbit_per_second": gbit, "latency": 0.001}
    return cluster_of(*groups, links=(link,), network=1.0)


def memory_of(config: RunConfig, size: int) -> Memory:
    return WHOLE


def plans_of(
    cluster: Cluster, sizes: Sizes, chain: Chain = CHAIN, config: RunConfig = JOB
) -> list[ClusterPlan]:
    """Plan an iteration of the config on a cluster in stages, the best first."""
    found = staged_candidates(config, cluster, chain, sizes, (NONE,), 0, memory_of)
    return plan_candidates(found, lambda own: own.cluster, None, lambda own: sent_of(own, sizes))
