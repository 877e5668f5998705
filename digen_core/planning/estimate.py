"""Estimated costs of a recipe on devices of which only a data sheet is known.

An operation on n items takes the time to read the weights, and n times its arithmetic at a share of
the device's peak. Text encoding, kernel launches and small batches' lower share are left out.
"""

from typing import Final

from digen_core.config.parallel import ParallelConfig
from digen_core.config.run import RunConfig
from digen_core.control.costs import DeviceCosts, Linear
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup
from digen_core.planning.sizes import Sizes, of_samples

_READS_OF_A_PAIR: Final = 2  # the weights, forward and backward
_SUM_BYTES: Final = 4  # of a gradient


def with_estimates(cluster: Cluster, sizes: Sizes, config: RunConfig) -> Cluster:
    """Return the cluster with what it does not give: costs of devices, and of what they exchange.

    Args:
        cluster: devices with ``tflops`` and without ``costs`` are estimated; a push and a sum of
            gradients, if the links of all devices are known.
        sizes: of the recipe.
        config: how the members of a gang share the work, and which sizes samples have.
    """
    parallel, sizes = config.parallel, of_samples(sizes, config)
    devices = tuple(
        group.model_copy(update={"costs": _estimated(group, cluster, sizes, parallel)})
        if group.costs is None and group.tflops
        else group
        for group in cluster.devices
    )
    link = cluster.slowest_link
    # Each member pulls its rows of all weights, and of sums; of adapters the leader takes all.
    receiving = min(group.members for group in devices) if sizes.trains_all else 1
    found: dict[str, object] = {"devices": devices}
    if link:
        bandwidth = 1e9 * link * receiving
        found["push"] = sizes.push_bytes / bandwidth
        found["gradient_sum"] = sizes.trained_parameters * _SUM_BYTES / bandwidth
    return cluster.model_copy(update=found)


def _estimated(
    group: DeviceGroup, cluster: Cluster, sizes: Sizes, parallel: ParallelConfig
) -> DeviceCosts:
    """Return seconds: FLOP over FLOP/s, and bytes over bytes/s.

    The members of a gang compute shares of the samples, those of a share some tokens each. Each
    reads all weights, of which it gathers the others' shards first: no part of that is taken to be
    hidden behind what is computed. The leader decodes alone.
    """
    assert group.tflops is not None
    degree = parallel.degree_of(group.members)
    together = degree * cluster.gang_efficiency if degree > 1 else 1.0
    shares = group.members // degree
    peak = 1e12 * group.tflops
    read = sizes.weight_bytes / (1e9 * group.bandwidth) if group.bandwidth else 0.0
    summed = 0.0
    if parallel.shard_weights:
        link = group.peer_link or group.link or cluster.network
        read += _from_peers(group, link, sizes.weight_bytes)
        trained = sizes.trained_parameters * sizes.trains_all
        summed = _from_peers(group, link, trained * _SUM_BYTES)
    return DeviceCosts(
        step=Linear(
            fixed=read,
            per_item=sizes.step_flops / (peak * cluster.mfu_denoise * together),
            shares=shares,
        ),
        decode=Linear(per_item=sizes.decode_flops / (peak * cluster.mfu_denoise)),
        pack=Linear(
            fixed=_READS_OF_A_PAIR * read + summed,
            per_item=sizes.pair_flops / (peak * cluster.mfu_train * together),
            shares=shares,
        ),
    )


def _from_peers(group: DeviceGroup, link: float | None, num_bytes: float) -> float:
    """Return the seconds in which a member receives what the others have of so many bytes.

    Args:
        group: of the gangs.
        link: GB/s that each receives; None: not counted.
        num_bytes: of all members together.
    """
    return num_bytes * (1 - 1 / group.members) / (1e9 * link) if link else 0.0
