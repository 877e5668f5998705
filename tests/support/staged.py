"""A chain, cards and a cluster for tests of gangs in stages."""

import numpy as np

from digen_core.control.costs import Linear
from digen_core.planning.cluster import Cluster
from digen_core.planning.memory import CONTEXT_BYTES, Memory
from digen_core.planning.sizes import Sizes
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


def cluster_of(*groups: dict, network: float = 10.0, **others) -> Cluster:
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
