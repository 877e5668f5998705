"""``digen plan --fleet``: what one device more of each kind would bring, and one less cost."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from pydantic import ValidationError
from rich.console import Console

from deployments.views.plans.plan import plan
from deployments.views.plans.row import Row
from deployments.views.plans.table import table_of
from deployments.views.terminal import terminal
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.text import short
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup


@dataclass(frozen=True, slots=True)
class Change:
    """A cluster with a device more or less, and the best plan for it."""

    what: str  # such as "+1 h100", or "as it is"
    best: Row


def changes(config: RunConfig, cluster: Cluster) -> list[Change]:
    """Return the best plan of a cluster as it is, and with a device more or less of each group.

    Devices that a run cannot do without are not taken away.

    Raises:
        UserError: as of ``plan``.
    """
    found = [Change("as it is", plan(config, cluster)[0])]
    for what, changed in _changed(cluster):
        with suppress(UserError):  # what is left cannot do it
            found.append(Change(what, plan(config, changed, saying=f"planning for {what}")[0]))
    return found


def _changed(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """Yield clusters of a device, or of a whole gang, more or less.

    Of groups that are alike but for their price the cheapest has one more, the dearest one less.
    """
    groups = list(cluster.devices)
    for name, places in _alike(cluster).items():
        ordered = sorted(places, key=lambda place: groups[place].price_per_hour)
        more, place = groups[ordered[0]], ordered[-1]
        one = {"count": more.members, "hosts": ()}
        yield f"+1 {name}", _with(cluster, [*groups, more.model_copy(update=one)])
        less = groups[place]
        fewer = {"count": less.count - less.members, "hosts": ()}
        left = [less.model_copy(update=fewer)] if fewer["count"] else []
        try:
            yield f"-1 {name}", _with(cluster, [*groups[:place], *left, *groups[place + 1 :]])
        except ValidationError:  # it has a role that no other one has
            continue


def _alike(cluster: Cluster) -> dict[str, list[int]]:
    """Return the places of groups by what a device of them is called."""
    found, has_sites = dict[str, list[int]](), len({group.site for group in cluster.devices}) > 1
    for place, group in enumerate(cluster.devices):
        name = f"{group.members} x {group.kind}" if group.members > 1 else group.kind
        name += f" at {group.site}" if has_sites and group.site else ""
        name += "" if group.roles == "both" else f" ({group.roles})"
        found.setdefault(name, []).append(place)
    return found


def _with(cluster: Cluster, groups: list[DeviceGroup]) -> Cluster:
    """Return a cluster with other devices, and the links between the sites that they have."""
    sites = {group.site for group in groups}
    links = tuple(own for own in cluster.links if own.link.sites <= sites)
    changed = {"devices": tuple(groups), "links": links}
    return Cluster.model_validate({**dict(cluster.to_plan), **changed})


def print_changes(found: list[Change], title: str, console: Console | None = None) -> None:
    """Print a row for each change, the one that gains most first, after the cluster as it is."""
    console = console or terminal()
    now, *others = found
    ordered = (now, *sorted(others, key=lambda own: own.best.seconds))
    rows = [_cells(change, now.best) for change in ordered]
    console.print(table_of(title, HEADINGS, rows))
    if not now.best.cost_per_1000_samples:
        console.print("\nno group of the cluster file has a price_per_hour")


HEADINGS = (
    "\ndevices",
    "\nlayout",
    "split\nR:M",
    "seconds\n/iter.",
    "\nspeed",
    "cost\n/1000",
    "cost of\na sample",
)


def _cells(change: Change, now: Row) -> list[str]:
    best = change.best
    before = now.cost_per_1000_samples
    return [
        change.what,
        best.layout,
        f"{best.rollout}:{best.trainers}" if best.trainers else "both",
        short(best.seconds, 4),
        f"{best.samples_per_second / now.samples_per_second - 1:+.1%}",
        short(best.cost_per_1000_samples),
        f"{best.cost_per_1000_samples / before - 1:+.1%}" if before else "-",
    ]


def write_json(found: list[Change]) -> None:
    """Print a list of objects, the cluster as it is first."""
    rows = [{"devices": change.what, **asdict(change.best)} for change in found]
    sys.stdout.write(json.dumps(rows, indent=2) + "\n")
