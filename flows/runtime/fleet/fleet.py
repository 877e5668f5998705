"""The workers of a run: those that take part, are made ready, only score, or are gone."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from digen_core.control.protocol import Device, Role

if TYPE_CHECKING:
    from flows.runtime.fleet.joining import Newcomer


@dataclass
class Fleet:
    """Which workers a run has. Only its methods change it, and each says what happened."""

    devices: list[Device]
    """Those that take part."""
    addresses: dict[str, str]
    """Address of the worker of each device, of those that are made ready, too; of a gang: of its
    leader."""
    followers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each device that is a gang, the addresses of its other workers, by name."""
    pools: dict[str, list[str]] = field(default_factory=dict)
    """Workers that only score, by the name of their pool."""
    known: dict[str, Device] = field(default_factory=dict)
    """All devices that ever took part, by name."""
    earlier: dict[str, Device] = field(default_factory=dict)
    """Those that did so in earlier processes of the run, perhaps in another layout."""
    loaded: set[str] = field(default_factory=set)
    """Addresses of workers that hold the model."""
    joining: "dict[str, Newcomer]" = field(default_factory=dict)
    """Devices that are being made ready, by name."""
    losses: Counter[str] = field(default_factory=Counter)
    """How often each worker was lost since something was last finished."""
    lost_joining: Counter[str] = field(default_factory=Counter)
    """How often it was as it was made ready, which nobody else waits for."""
    empty_since: dict[str, float] = field(default_factory=dict)
    """Pools without a worker, and since when (``time.monotonic``)."""
    shares_folder: bool = False
    """Whether workers have to see the run's folder, as what they write there is to stay."""
    num_lost: int = 0
    num_joined: int = 0
    num_left: int = 0
    may_turn: set[str] = field(default_factory=set)
    """Devices that have one role, and whose workers declare both."""
    planned: tuple[frozenset[str], frozenset[str]] = field(init=False)
    """The devices for which the roles were planned, and those at the last iteration's end."""
    num_most: int = field(init=False)
    """Devices that took part at once, at most."""
    rollout_share: float = field(init=False)
    """Share of the devices at the start that generate."""

    def __post_init__(self) -> None:
        self.known |= {device.name: device for device in self.devices}
        self.num_most = len(self.devices)
        self.planned = (self.names, self.names)
        self.rollout_share = len(self.rollout_devices()) / max(len(self.devices), 1)

    def rollout_devices(self) -> list[str]:
        """Names of the devices that generate."""
        return [device.name for device in self.devices if "rollout" in device.roles]

    def trainer_devices(self) -> list[str]:
        """Names of the devices that train."""
        return [device.name for device in self.devices if "trainer" in device.roles]

    def workers_of(self, name: str) -> tuple[str, ...]:
        """Return the addresses of the workers of a device, by rank.

        Raises:
            KeyError: it is lost.
        """
        followers = self.followers.get(name, {})
        return self.addresses[name], *(followers[own] for own in self.known[name].followers)

    def site_of(self, address: str) -> str:
        """Return where a worker is; "" if that is not known, or it is gone."""
        for name, own in self.addresses.items():
            if address == own or address in self.followers.get(name, {}).values():
                return self.known[name].site if name in self.known else ""
        return ""

    @property
    def all_devices(self) -> list[Device]:
        """Those that take part, and others whose spans the run's folder holds."""
        names, known = self.names, {**self.earlier, **self.known}
        return self.devices + [d for name, d in known.items() if name not in names]

    def took_part(self, devices: Iterable[Device]) -> None:
        """Note devices of an earlier process of the run."""
        self.earlier |= {device.name: device for device in devices}

    def making_ready(self, newcomer: "Newcomer") -> None:
        """Note a worker that came, and loads the model now."""
        self.addresses[newcomer.worker.name] = newcomer.worker.address
        self.joining[newcomer.worker.name] = newcomer

    def has_coming(self, role: Role) -> bool:
        """Say whether a device of a role is being made ready."""
        return any(role in newcomer.roles for newcomer in list(self.joining.values()))

    def made_ready(self, name: str) -> "Newcomer | None":
        """Note that a worker is no longer made ready; None: nobody waited for it any more."""
        return self.joining.pop(name, None)

    def abandon(self, name: str) -> None:
        """Wait no more for a worker that is made ready, if it is."""
        if newcomer := self.made_ready(name):
            newcomer.abandoned.set()

    def came(self, name: str, address: str) -> None:
        """Note the address of a device that is about to take part."""
        self.addresses[name] = address

    def turned_away(self, name: str) -> None:
        """Note that a worker does not take part after all."""
        self.followers.pop(name, None)
        del self.addresses[name]

    def has_to_see_folder(self) -> None:
        """Note that what workers write into the run's folder is to stay."""
        self.shares_folder = True

    def formed(self, name: str, followers: Mapping[str, str]) -> None:
        """Note the members of a gang but for its leader, whose workers hold a model together."""
        self.followers[name] = dict(followers)

    def holds_model(self, device: Device) -> bool:
        """Say whether the workers of a device hold the model, those of a gang as its members."""
        is_formed = device.size == 1 or device.name in self.followers
        return is_formed and self.addresses[device.name] in self.loaded

    def has_loaded(self, address: str) -> None:
        """Note that a worker holds the model."""
        self.loaded.add(address)

    def loads_again(self, name: str) -> None:
        """Note that a device is to load its model anew."""
        self.loaded.discard(self.addresses[name])

    def join(self, device: Device) -> None:
        """Let a device take part, whose worker is in ``addresses``."""
        self.devices.append(device)
        self.num_most = max(self.num_most, len(self.devices))
        self.known[device.name] = device
        self.num_joined += 1

    def lose(self, names: Collection[str]) -> None:
        """Count devices out whose workers are gone; nobody waits for those that are made ready."""
        self.num_lost += len(names)
        self.lost_joining.update(self.joining.keys() & set(names))
        self.losses.update(set(names) - self.joining.keys())
        self.devices = [device for device in self.devices if device.name not in names]
        for name in names:
            self.abandon(name)
            self.followers.pop(name, None)
            self.loaded.discard(self.addresses.pop(name))

    @property
    def names(self) -> frozenset[str]:
        """Of the devices that take part."""
        return frozenset(device.name for device in self.devices)

    def changed_since_last_plan(self) -> bool:
        """Say, at an iteration's end, whether other devices than planned for have stayed for it."""
        planned, before = self.planned
        self.planned = (planned, self.names)
        return planned != before == self.names

    def roles_are_planned(self) -> None:
        """Note that the devices have the roles that are best."""
        self.planned = (self.names, self.names)

    def turned(self, name: str, role: Role) -> None:
        """Note that a device that has left is to come back with another role."""
        self.known[name] = replace(self.known[name], roles=frozenset([role]))

    def left(self, name: str) -> None:
        """Note that a device takes part no more, as it was asked to leave, or is to turn."""
        self.num_left += 1
        self.devices = [device for device in self.devices if device.name != name]
        self.followers.pop(name, None)
        self.loaded.discard(self.addresses.pop(name))

    def forgive_losses(self) -> None:
        """Forget losses, as something was finished since."""
        self.losses.clear()
        self.lost_joining.clear()

    def pools_are_empty(self, pools: Iterable[str], now: float) -> None:
        """Note which pools have no worker; the others have one again."""
        self.empty_since = {pool: self.empty_since.get(pool, now) for pool in pools}
