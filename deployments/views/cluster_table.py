"""``digen cluster show``: the devices of a cluster file."""

from rich.console import Console

from deployments.operation.workers import spares_in
from deployments.views.terminal import borderless, plain, terminal
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup, RewardGroup

HEADINGS = ("kind", "count", "roles", "where", "GB/s", "threads", "price/h", "watts")


def print_cluster(cluster: Cluster, console: Console | None = None) -> None:
    """Print a row for each group of devices, and their sums."""
    console = console or terminal()
    table = borderless(plain(cluster.description))
    for heading in HEADINGS:
        is_text = heading in ("kind", "roles", "where")
        table.add_column(heading, justify="left" if is_text else "right")
    for group in cluster.groups:
        if isinstance(group, RewardGroup):
            roles, link = f"pool {group.pool}", None
        else:
            roles, link = group.roles, group.link or cluster.network
        table.add_row(
            group.kind,
            _count(group),
            roles,
            " ".join(filter(None, (group.site, *group.hosts))) or "-",
            f"{link:g}" if link else "-",
            str(group.threads),
            f"{group.price_per_hour:g}",
            f"{group.watts:g}",
        )
    for own in cluster.gangs:
        counts = f"{own.count} gangs of {own.members}"
        table.add_row(own.kind, counts, own.roles, " ".join(own.ranks), *[""] * 4)
    for of, number in spares_in(cluster):
        table.add_row(of.kind, str(number), "spare", f"for {' '.join(of.places)}", *[""] * 4)
    if len(cluster.groups) > 1:
        sums = (f"{cluster.price_per_hour:g}", f"{cluster.watts:g}")
        table.add_row(
            "in all", str(sum(group.count for group in cluster.groups)), "", "", "", "", *sums
        )
    console.print(table)


def _count(group: DeviceGroup | RewardGroup) -> str:
    """Return how many devices there are, or of how many each gang is, and on how many hosts."""
    if not isinstance(group, DeviceGroup) or group.members == 1:
        return str(group.count)
    spread = f" on {group.gang_hosts} hosts" if group.gang_hosts > 1 else ""
    return f"{group.num_devices} gangs of {group.members}{spread}"
