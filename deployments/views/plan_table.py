"""Plans on the terminal: a table, what is idle, and the lines of config and cluster file."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from deployments.views.plan import Row
from deployments.views.terminal import borderless, terminal
from digen_core.trace.gaps import CAUSES

ESTIMATED: Final = """\
estimated, not measured: arithmetic over a share of the devices' peak (docs/sizes.md);
the profile.json of a short run gives better ones (schedule.profile)"""


MEMORY: Final = """\
devices without a capacity: whether weights and activations fit is not looked at; the cluster file
takes one, and 'digen size --memory' says what is needed"""


def print_plan(rows: Sequence[Row], title: str, console: Console | None = None) -> None:
    """Print the plans, the best one first, their idle time, and the config that the best needs."""
    console = console or terminal()
    console.print(table_of(title, HEADINGS, [_cells(row) for row in rows]))
    idle = [[row.layout, *(f"{row.idle[cause]:.1%}" for cause in CAUSES)] for row in rows]
    title = "\nidle share of the device time, by cause"
    console.print(table_of(title, ("layout", *CAUSES), idle))
    if rows[0].estimated:
        console.print(f"\n{ESTIMATED}")
    for site in rows[0].left_out:
        console.print(f"\nthe devices at {site} are left out: their link is too slow for more")
    if rows[0].has_gangs or rows[0].has_sites:
        console.print(f"\nthe devices in a cluster file:\n\n{devices_of(rows[0])}", markup=False)
    for kind, role in rows[0].narrowed.items() if not rows[0].has_gangs else ():
        console.print(f"\n{kind}: its memory leaves it the role {role} alone; say so in the file")
    if not rows[0].fitted:
        console.print(f"\n{MEMORY}")
    console.print(f"\n{toml_of(rows[0])}", markup=False)


def table_of(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table whose first column is a name, and whose others are numbers."""
    table = borderless(title, gap=1)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def toml_of(row: Row) -> str:
    """Return the lines that make a config follow a plan."""
    rollout, trainers = row.rollout, row.trainers
    if not trainers:  # a colocated layout takes them all
        rollout, trainers = row.rollout - row.rollout // 2, row.rollout // 2
    lines = [
        "[rollout]",
        f"fragment_size = {row.fragment_size}",
        "[train]",
        f"pack_size = {row.pack_size}",
        "[cluster]",
        f"rollout_workers = {rollout}",
        f"trainer_workers = {trainers}",
        *_gangs_of(row),
        "[schedule]",
        f'layout = "{row.layout}"',
        f"helpers = {row.helpers}",
        f"assistants = {row.assistants}",
        f"max_stale_share = {row.stale_share}",
        f"max_staleness = {row.max_staleness}",
    ]
    return "\n".join(lines)


def _gangs_of(row: Row) -> list[str]:
    """Return the lines for the gangs of a plan, if there are any."""
    if not row.has_gangs:
        return []
    sizes = {role: row.gangs_of(role) for role in ("rollout", "trainer")}
    lines = [f"{role}_gang = {own[0]}" for role, own in sizes.items() if len(own) == 1]
    shares = str(row.parallel["shard_weights"]).lower()
    lines += ["[parallel]", f"shard_weights = {shares}"]
    return [*lines, f"context_parallel = {row.parallel['context_parallel']}"]


def devices_of(row: Row) -> str:
    """Return the groups of a cluster file for a plan: what of the file is open, and roles."""
    tables = [
        f'[[devices]]\nkind = "{part.kind}"\ncount = {part.count}\ngang = {part.gang}\n'
        + (f'site = "{part.site}"\n' if part.site else "")
        + f'roles = "{part.roles}"'
        for part in row.parts
    ]
    return "\n".join(tables)


HEADINGS = (
    "\nlayout",
    "split\nR:M",
    "gangs\nR:M",
    "helpers\n/assist",
    "stale\nshare",
    "fragm.\n/pack",
    "seconds\n/iter.",
    "samples\n/s",
    "cost\n/1000",
    "kWh\n/1000",
)


def _cells(row: Row) -> list[str]:
    return [
        row.layout,
        f"{row.rollout}:{row.trainers}" if row.trainers else "both",
        ":".join("+".join(map(str, row.gangs_of(role))) for role in ("rollout", "trainer")),
        f"{row.helpers}/{row.assistants}",
        f"{row.stale_share:.0%}{f' x{row.max_staleness}' if row.max_staleness > 1 else ''}",
        f"{row.fragment_size}/{row.pack_size}",
        f"{row.seconds:.4g}",
        f"{row.samples_per_second:.3g}",
        f"{row.cost_per_1000_samples:.2g}",
        f"{row.kwh_per_1000_samples:.2g}",
    ]
