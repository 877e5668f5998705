"""The deal of an inventory: its devices that generate, and those that train."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from digen_core.control.costs import DeviceCosts
from digen_core.control.protocol import Device, Role
from digen_core.control.schedule import Workload

BOTH: frozenset[Role] = frozenset({"rollout", "trainer"})


def deal(
    fleet: Sequence[Device],
    num_rollout: int,
    workload: Workload,
    kinds: Mapping[str, DeviceCosts],
    home: str | None = None,
) -> tuple[Device, ...]:
    """Return the devices with one role each, those that generate first.

    Of the devices that may do both, those generate that are better at it than at training.

    Args:
        fleet: devices with the roles that they may have.
        num_rollout: devices that generate.
        workload: that they do.
        kinds: what it costs, by kind of device.
        home: site whose devices train before others do; None: any.
    """

    def rank(device: Device) -> tuple[bool, bool, bool, float]:
        """Order those that only generate, those free to do both, those that only train."""
        costs = kinds[device.kind]
        generating = costs.fragment(workload.fragment_size, workload.mean_steps)
        training = costs.pack(workload.pack_size)
        ratio = generating / training if training else 0.0
        return device.roles == {"trainer"}, device.roles == BOTH, device.site == home, ratio

    ranked = sorted(fleet, key=rank)
    parts: dict[Role, list[Device]] = {
        "rollout": ranked[:num_rollout],
        "trainer": ranked[num_rollout:],
    }
    return tuple(
        replace(device, roles=frozenset([role]))
        for role, devices in parts.items()
        for device in devices
    )
