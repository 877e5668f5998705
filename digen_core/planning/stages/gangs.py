"""Gangs in stages: which devices of a cluster hold a model together, and which blocks each has.

They may be unequal, as the cards of a room are. Those of a site are put in order, the largest
memory first, and dealt over its gangs: first the leaders, which have the text encoders, too, then
the second stages, and so on. Gangs of a run with as many stages are cut at the same blocks, so a
stage has to fit the least of the devices that have it. Where there are several sites, each may
have its own number of stages, or all devices are one gang, placed by OP-Fence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from digen_core.config.cuts import CutConfig
from digen_core.config.run import RunConfig
from digen_core.config.size import Size
from digen_core.control.costs import DeviceCosts
from digen_core.control.protocol import Role
from digen_core.planning.capacity import GB
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import ROLES, DeviceGroup
from digen_core.planning.memory import CONTEXT_BYTES
from digen_core.planning.sizes import Sizes, cost_of_sample, largest_size
from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.codecs import NONE, Codec
from digen_core.planning.stages.costs import costs_of
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.op_fence import op_fence
from digen_core.planning.stages.pipeline import PORTIONS_PER_STAGE
from digen_core.planning.stages.placement import Placer, Stage
from digen_core.planning.stages.plans import plan_of

MOST_STAGES: Final = 16
_NEAR: Final = 0.0002  # seconds of latency between two devices of a site, an assumption

Gangs = Sequence[Sequence[DeviceGroup]]
"""Gangs of a site: of each stage, the groups that its devices are of, one for each gang."""


@dataclass(frozen=True)
class Cut:
    """Where gangs of a number of stages are cut."""

    stages: tuple[Stage, ...]
    least: Network  # of what the devices of each stage have


@dataclass(frozen=True)
class Staged:
    """Gangs that hold a model in stages."""

    config: RunConfig  # with the stages, and the codecs of their cuts
    devices: Cluster  # a group of gangs for each site, with what their work costs
    ranks: Mapping[str, tuple[str, ...]]  # gang -> its members by rank, as in a cluster file
    left_out: dict[str, int]  # devices that are in no gang, by kind
    speed: float  # pairs per second of all gangs together, by formula

    @property
    def crosses_sites(self) -> bool:
        """Whether a gang has members of several sites."""
        return any(len({name.partition("@")[2] for name in own}) > 1 for own in self.ranks.values())


@dataclass(frozen=True)
class Maker:
    """Makes gangs of the devices of a cluster whose ``tflops``, ``capacity`` and links are known.

    All devices are alike to it: groups say how many there are of what.
    """

    config: RunConfig
    cluster: Cluster
    chain: Chain
    sizes: Sizes
    codecs: Sequence[Codec]  # that cuts may have, the mildest first
    text_bytes: int  # of the text encoders, which a leader has beside its stage
    leader_share: float = 1.0  # of the memory that these leave that its stage may take

    def all(self) -> list[Staged]:
        """Return the gangs that are possible, those with the most pairs per second first.

        If the config says how many stages there are, no other number is tried.
        """
        stages = self.config.parallel.stages
        counts = range(2, MOST_STAGES + 1) if stages == 1 else (stages,)
        sites = self._sites
        found = [
            own
            for count in counts
            for some in ([sites] if len(sites) > 1 else []) + [[site] for site in sites]
            if (own := self.of_sites(dict.fromkeys(some, count))) is not None
        ]
        if len(sites) > 1:
            others = (self._each_its_own(found), self.across_sites())
            found += [own for own in others if own is not None]
        return sorted(found, key=lambda own: -own.speed)

    def of_sites(self, counts: Mapping[str, int]) -> Staged | None:
        """Return as many gangs as sites can have of so many stages; None: they do not fit."""
        sites = {site: own for site in counts if (own := self._gangs_at(site, counts[site]))}
        if not sites or max(counts.values()) > len(self.chain.blocks):
            return None
        alike: dict[int, list[Gangs]] = {}
        for own in sites.values():
            alike.setdefault(len(own), []).append(own)
        for size in self._pack_sizes(max(alike)):
            cuts = {count: self._cut(gangs, size) for count, gangs in alike.items()}
            known = {count: cut for count, cut in cuts.items() if cut is not None}
            if len(known) == len(cuts):
                return self._staged(sites, known, size)
        return None

    def _each_its_own(self, found: Sequence[Staged]) -> Staged | None:
        """Return gangs of the number of stages that is the best at each site alone.

        None: it is the same number at all that can hold the model.
        """
        counts: dict[str, int] = {}
        for own in sorted(found, key=lambda own: own.speed):
            site, *others = {group.site for group in own.devices.devices}
            if not others:
                counts[site] = own.config.parallel.stages
        return self.of_sites(dict(sorted(counts.items()))) if len({*counts.values()}) > 1 else None

    def _cut(self, gangs: Sequence[Gangs], size: int) -> Cut | None:
        """Return where gangs with the same number of stages are cut: for the least of them."""
        count = len(gangs[0])
        least = self._network([[card for own in gangs for card in own[n]] for n in range(count)])
        found = Placer(self.chain, least, self.codecs[-1], size).place(range(count))
        if found is None or len(found.stages) != count:
            return None
        return Cut(found.stages, least)

    def across_sites(self) -> Staged | None:
        """Return one gang of devices of several sites; None: they cannot hold the model so."""
        cards = self._cards
        if not _roles([cards]):
            return None
        network = self._network([[card] for card in cards])
        for size in self._pack_sizes(len(cards)):
            placements = op_fence(self.chain, network, self.codecs[-1], size)
            wanted = self.config.parallel.stages
            fitting = [
                stages
                for stages, num in ((own.stages, len(own.stages)) for own in placements)
                if wanted in (1, num) and len({cards[stage.device].site for stage in stages}) > 1
            ]
            if fitting:
                stages = fitting[0]
                gangs = [[cards[stage.device]] for stage in stages]
                own = tuple(Stage(rank, *stage[1:]) for rank, stage in enumerate(stages))
                least = network.part([stage.device for stage in stages])
                return self._staged({gangs[0][0].site: gangs}, {len(own): Cut(own, least)}, size)
        return None

    @property
    def _cards(self) -> list[DeviceGroup]:
        """The group of each device."""
        return [group for group in self.cluster.devices for _ in range(group.count)]

    @property
    def _sites(self) -> list[str]:
        return sorted({group.site for group in self.cluster.devices})

    def _gangs_at(self, site: str, count: int) -> Gangs:
        """Return the gangs of so many stages of a site; empty: it has too few devices."""
        own = [card for card in self._cards if card.site == site]
        own.sort(key=lambda card: (-(card.capacity or 0), -(card.tflops or 0), card.kind))
        number = len(own) // count
        gangs = [own[n * number : (n + 1) * number] for n in range(count)]
        return gangs if number and _roles(gangs) else []

    def _pack_sizes(self, count: int) -> list[int]:
        """Return sizes of packs, the largest first: there a portion is one of the config's packs.

        Args:
            count: of stages.
        """
        num_pairs = self.config.pairs_per_update
        portions = min(PORTIONS_PER_STAGE * count, num_pairs)
        largest = min(self.config.train.pack_size * portions, num_pairs)
        return [largest >> power for power in range(largest.bit_length())]

    def _network(self, gangs: Gangs) -> Network:
        """Return the least that the devices of each stage have, and what is between stages."""
        largest = largest_size(self.config.model)  # that the chain is counted with
        rates = [self._rate(own, largest) for own in gangs]
        memory = [GB * min(card.capacity or 0 for card in own) - CONTEXT_BYTES for own in gangs]
        leading = [self.leader_share * (own - self.text_bytes) for own in memory]
        links = [[self._link(one, other) for other in gangs] for one in gangs]
        bandwidth, latency = np.moveaxis(np.array(links), -1, 0)
        memories = np.maximum([memory, leading], 1.0)
        return Network(np.array(rates), memories[0], bandwidth, latency, memories[1])

    def _rate(self, cards: Sequence[DeviceGroup], size: Size) -> float:
        """Return the FLOPs that the least of some devices computes a second, counted at a size.

        So that what they make of it are the seconds of a sample of the mean size.
        """
        cost = cost_of_sample(self.config.model, size)
        return 1e12 * self.cluster.mfu_train * cost * min(card.tflops or 0 for card in cards)

    def _link(
        self, one: Sequence[DeviceGroup], other: Sequence[DeviceGroup]
    ) -> tuple[float, float]:
        """Return bytes per second and latency between two stages: the least of all gangs."""
        size = min(len(one), len(other))
        found = [self._between(*pair) for pair in zip(one[:size], other[:size], strict=True)]
        return min(own[0] for own in found), max(own[1] for own in found)

    def _between(self, one: DeviceGroup, other: DeviceGroup) -> tuple[float, float]:
        if one.site != other.site:
            ends = frozenset((one.site, other.site))
            link = next(own.link for own in self.cluster.links if own.link.sites == ends)
            return link.bytes_per_second, link.latency
        if one.kind == other.kind and one.peer_link:
            return 1e9 * one.peer_link, _NEAR
        return 1e9 * min(map(self._received, (one, other))), _NEAR

    def _received(self, group: DeviceGroup) -> float:
        """Return the GB/s that a device receives."""
        return group.link or self.cluster.network or 0.0

    def _name_of(self, card: DeviceGroup) -> str:
        """Return what gangs of a cluster file call a device."""
        return f"{card.kind}@{card.site}" if len(self._sites) > 1 else card.kind

    def _staged(self, sites: Mapping[str, Gangs], cuts: Mapping[int, Cut], size: int) -> Staged:
        # gangs that are cut in several ways have to compute the same: as without codecs
        codecs = self.codecs if len(cuts) == 1 else self.codecs[:1]
        config = self._config(cuts, codecs, size)
        groups, speed = [], 0.0
        for site, gangs in sites.items():
            suffix = f"-{site}" if len(sites) > 1 else ""
            stages, network = cuts[len(gangs)].stages, self._network(gangs)
            plan = plan_of(self.chain, network, stages, codecs)
            costs = costs_of(
                plan, self._rate(gangs[0], self.config.model.size), self.cluster, config, self.sizes
            )
            group = _group(f"{len(stages)}-stages{suffix}", gangs, costs)
            groups.append(group)
            speed += group.num_devices * size / costs.pack(size)
        ranks = {
            f"{group.kind}-{number}": tuple(map(self._name_of, cards))
            for group, gangs in zip(groups, sites.values(), strict=True)
            for number, cards in enumerate(zip(*gangs, strict=True))
        }
        devices = self.cluster.model_copy(update={"devices": tuple(groups)})
        total = Counter(card.kind for card in self._cards)
        used = Counter(card.kind for gangs in sites.values() for own in gangs for card in own)
        return Staged(config, devices, ranks, dict(total - used), speed)

    def _config(self, cuts: Mapping[int, Cut], codecs: Sequence[Codec], size: int) -> RunConfig:
        """Return the config with the stages of gangs, their codecs, and packs that fit."""
        dealt = [tuple(stage.end - stage.first for stage in cut.stages) for cut in cuts.values()]
        only = len(dealt) == 1
        coded = [
            CutConfig.model_validate(
                {"block": stage.first, "forward": codec.forward, "backward": codec.backward}
            )
            for cut in cuts.values()
            for stage, codec in zip(cut.stages[1:], self._codecs(cut, codecs), strict=True)
            if codec is not NONE
        ]
        config = self.config
        changes = {
            "parallel": {
                "stages": len(dealt[0]) if only else 1,
                "stage_blocks": dealt[0] if only else (),
                "stages_by_size": () if only else tuple(sorted(dealt, key=len)),
                "shard_weights": False,
                "context_parallel": 1,
            },
            "model": {"cuts": tuple(coded)},
            "train": {"pack_size": size},
        }
        tables = {
            table: getattr(config, table).model_copy(update=values)
            for table, values in changes.items()
        }
        return config.model_copy(update=tables)

    def _codecs(self, cut: Cut, codecs: Sequence[Codec]) -> Sequence[Codec]:
        """Return the codec of each cut."""
        return plan_of(self.chain, cut.least, cut.stages, codecs).codecs


def _roles(gangs: Gangs) -> frozenset[Role]:
    """Return the roles that all members of gangs may have."""
    return frozenset.intersection(*(ROLES[card.roles] for own in gangs for card in own))


def _group(kind: str, gangs: Gangs, costs: DeviceCosts) -> DeviceGroup:
    """Return the gangs of a site as a group: of what a device has, the mean of their members."""
    cards = [card for own in gangs for card in own]
    roles = _roles(gangs)
    return DeviceGroup(
        kind=kind,
        count=len(cards),
        gang=len(gangs),
        site=cards[0].site,
        roles=next(name for name, own in ROLES.items() if own == roles),
        costs=costs,
        capacity=min(card.capacity or 0 for card in gangs[0]),
        link=min((card.link for card in cards if card.link), default=None),
        price_per_hour=fmean(card.price_per_hour for card in cards),
        watts=fmean(card.watts for card in cards),
        idle_watts=fmean(card.waiting_watts for card in cards),
        cuda=all(card.cuda for card in cards),
        threads=max(card.threads for card in cards),
    )
