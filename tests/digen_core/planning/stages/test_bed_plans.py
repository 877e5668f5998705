"""Plans of clusters like the beds: none of the ways that the beds compare is faster."""

from typing import Any, Final

import numpy as np
import pytest

from digen_core.config.run import RunConfig
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.sizes import Sizes
from digen_core.planning.stages.beds import FLUX, TRAJECTORY_BYTES
from support.staged import CONTEXT, GB, cluster_of, plans_of

TRAINED: Final = FLUX.total("trained_bytes")
SIZES: Final = Sizes(
    parameters=12 * GB,
    trained_parameters=int(TRAINED / 2),
    trains_all=False,
    weight_bytes=24 * GB,
    push_bytes=int(TRAINED),
    step_flops=round(FLUX.total("forward_flops")),
    pair_flops=round(FLUX.total("forward_flops") * 2 + FLUX.total("backward_flops")),
    decode_flops=10**12,
    latent_bytes=262_144,
    velocity_bytes=0,
    trajectory_bytes=int(TRAJECTORY_BYTES),
    embedding_bytes=4_200_000,
)
CONFIG: Final = RunConfig.model_validate(
    {
        "model": {"dtype": "bfloat16"},
        "rollout": {
            "group_size": 8,
            "fragment_size": 8,
            "prompts_per_iteration": 12,
            "num_steps": 6,
        },
        "train": {"pack_size": 8},
    }
)
KINDS: Final = (("slow", 25, 3), ("middle", 40, 3), ("fast", 70, 2))  # TFLOP/s, number at a site


def bed(sites: str, megabits: tuple[float, float], seed: int) -> dict[str, Any]:
    """Eight devices at each site, links drawn between each two of them."""
    rng = np.random.default_rng(seed)
    low, high = np.log(megabits)
    pairs = [(a, b) for a in sites for b in sites if a < b]
    rates = np.exp(rng.uniform(low, high, len(pairs))) / 1000
    return {
        "devices": [
            {
                "kind": f"{kind}-{site}",
                "count": count,
                "tflops": tflops,
                "capacity": 22 + CONTEXT,
                "site": site,
            }
            for site in sites
            for kind, tflops, count in KINDS
        ],
        "links": [
            {"between": pair, "gbit_per_second": float(rate), "latency": 0.02}
            for pair, rate in zip(pairs, rates, strict=True)
        ],
    }


def cluster(own: dict[str, Any], sites: str, trainers: str | None = None) -> Cluster:
    """Some sites of a bed; if some train, all others only generate."""
    groups = [group for group in own["devices"] if group["site"] in sites]
    if trainers is not None:
        groups = [
            group | {"roles": "trainer" if group["site"] in trainers else "rollout"}
            for group in groups
        ]
    links = [link for link in own["links"] if set(link["between"]) <= set(sites)]
    return cluster_of(*groups, links=links, network=0.4, mfu_train=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sites", "megabits", "seed"),
    [
        pytest.param("abc", (100, 1000), 0, marks=pytest.mark.nightly),
        pytest.param("abc", (100, 1000), 1, marks=pytest.mark.nightly),
        pytest.param("abcdef", (8, 100), 0, marks=pytest.mark.nightly),
    ],
    ids=["24 devices", "24 devices, other links", "48 devices"],
)
def test_no_way_of_the_beds_is_faster_than_the_plan(sites, megabits, seed):
    own = bed(sites, megabits, seed)
    best = plans_of(cluster(own, sites), SIZES, FLUX, CONFIG)[0].own.seconds
    ways = {f"{site} alone": cluster(own, site) for site in sites}
    ways |= {f"{site} trains": cluster(own, sites, site) for site in sites}
    found = {way: plans_of(own, SIZES, FLUX, CONFIG)[0].own.seconds for way, own in ways.items()}
    assert best <= min(found.values()), found
    assert best < 0.95 * max(found.values()), "ways differ"
