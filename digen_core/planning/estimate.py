"""Estimated costs of a recipe on devices of which only a data sheet is known.

An operation on n items takes the time to read the weights, and n times its arithmetic at a share of
the device's peak. Text encoding, kernel launches and small batches' lower share are left out.
"""

from digen_core.control.costs import DeviceCosts, Linear
from digen_core.planning.cluster import Cluster
from digen_core.planning.groups import DeviceGroup
from digen_core.planning.sizes import Sizes

_READS_OF_A_PAIR = 2  # the weights, forward and backward


def with_estimates(cluster: Cluster, sizes: Sizes) -> Cluster:
    """Return the cluster with costs for devices, and seconds of a push, that it does not give.

    Args:
        cluster: devices with ``tflops`` and without ``costs`` are estimated; a push, if the links
            of all devices are known.
        sizes: of the recipe.
    """
    devices = tuple(
        group.model_copy(update={"costs": _estimated(group, cluster, sizes)})
        if group.costs is None and group.tflops
        else group
        for group in cluster.devices
    )
    link = cluster.slowest_link
    push = sizes.push_bytes / (1e9 * link) if link else cluster.push
    return cluster.model_copy(update={"devices": devices, "push": push})


def _estimated(group: DeviceGroup, cluster: Cluster, sizes: Sizes) -> DeviceCosts:
    """Return seconds: FLOP over FLOP/s, and bytes over bytes/s.

    Members of a gang compute together; each reads all weights, and the leader decodes alone.
    """
    assert group.tflops is not None
    members = group.gang * cluster.gang_efficiency if group.gang > 1 else 1
    alone = 1e12 * group.tflops * cluster.mfu_denoise
    generating, training = alone * members, 1e12 * group.tflops * cluster.mfu_train * members
    read = sizes.weight_bytes / (1e9 * group.bandwidth) if group.bandwidth else 0.0
    return DeviceCosts(
        step=Linear(fixed=read, per_item=sizes.step_flops / generating),
        decode=Linear(per_item=sizes.decode_flops / alone),
        pack=Linear(fixed=_READS_OF_A_PAIR * read, per_item=sizes.pair_flops / training),
    )
