"""Plans on the terminal: tables, what is idle, and the lines of config and cluster file."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Final

from rich.console import Console
from rich.table import Table

from deployments.views.plans.row import ASKING, Row
from deployments.views.terminal import borderless, terminal
from digen_core.inputs.text import short
from digen_core.planning.cluster_plan import CostsFrom
from digen_core.planning.spending import Objective, Spent
from digen_core.trace.gaps import CAUSES

OF_COSTS: Final[dict[CostsFrom, str]] = {
    "data sheets": """\
estimated, not measured: arithmetic over a share of the devices' peak (docs/sizes.md);
the profile.json of a short run gives better ones (schedule.profile)""",
    "cluster file": """\
costs are the cluster file's, whatever the config's model; schedule.profile takes measured ones,
and devices with tflops in place of costs have them estimated (docs/sizes.md)""",
    "profile": "",
}
"""Notes on where costs are from."""

REFERENCE: Final = (
    f"{ASKING}: who generates a sample asks the reference policy, in place of who trains it"
)
MEMORY: Final = """\
devices without a capacity: whether weights and activations fit is not looked at; the cluster file
takes one, and 'digen size --memory' says what is needed"""


def print_plan(
    rows: Sequence[Row],
    title: str,
    objective: Objective = "seconds",
    console: Console | None = None,
) -> None:
    """Print the plans, the best one first, their idle time, and the config that the best needs."""
    console, best = console or terminal(), rows[0]
    console.print(table_of(title, HEADINGS, [_cells(row) for row in rows]))
    if objective != "seconds":
        _print_frontier(rows, objective, console)
    idle = [[row.title, *(f"{row.idle[cause]:.1%}" for cause in CAUSES)] for row in rows]
    title = "\nidle share of the device time, by cause"
    console.print(table_of(title, ("layout", *CAUSES), idle))
    asking = any(row.title != row.layout for row in rows)
    for note in filter(None, (REFERENCE * asking, OF_COSTS[best.costs_from])):
        console.print(f"\n{note}")
    if best.left_out:
        left_out = ", ".join(f"{number} {what}" for what, number in best.left_out.items())
        console.print(f"\nleft out, as the plan is better without them: {left_out}")
    if best.gangs:
        _print_stages(best, console)
    elif best.has_gangs or best.has_sites or best.left_out:
        console.print(f"\nthe devices in a cluster file:\n\n{devices_of(best)}", markup=False)
    for kind, role in best.narrowed.items() if not best.has_gangs else ():
        console.print(f"\n{kind}: its memory leaves it the role {role} alone; say so in the file")
    if not best.fitted:
        console.print(f"\n{MEMORY}")
    console.print(f"\n{toml_of(best)}", markup=False)


def _print_stages(row: Row, console: Console) -> None:
    """Print which device holds which blocks, and the gangs as a cluster file takes them."""
    coded = {cut["block"]: f"{cut['forward']}/{cut['backward']}" for cut in row.cuts}
    headings = ("rank", "device", "blocks", "numbers", "streams")
    for blocks in row.stages:
        gangs, ends = (
            [own for own in row.gangs if len(own.ranks) == len(blocks)],
            accumulate(blocks),
        )
        cells = [
            [
                str(rank),
                "/".join(sorted({own.ranks[rank] for own in gangs})),
                str(number),
                f"{end - number}-{end - 1}",
                coded.get(end - number, "as they are") if rank else "",
            ]
            for rank, (number, end) in enumerate(zip(blocks, ends, strict=True))
        ]
        whose = f"gang of {len(blocks)}" if len(row.stages) > 1 else "gang"
        console.print(table_of(f"\nstages: the members of each {whose}", headings, cells))
    tables = [
        f'[[gangs]]\nkind = "{own.kind}"\ncount = {own.count}\n'
        f'ranks = [{", ".join(map(json.dumps, own.ranks))}]\nroles = "{own.roles}"'
        for own in row.gangs
    ]
    console.print("\nbeside the devices in the cluster file:\n\n" + "\n".join(tables), markup=False)


def _print_frontier(rows: Sequence[Row], spent: Spent, console: Console) -> None:
    """Print what plans take, the fastest first, and how the best is beside it."""
    unit = "cost" if spent == "money" else "kWh"
    headings = ("devices", "layout", "seconds/iter.", f"{unit}/iter.", f"{unit}/1000", "")
    ordered = sorted(rows, key=lambda row: row.seconds)
    cells = [
        [
            row.devices,
            row.layout,
            short(row.seconds, 4),
            short(row.spent(spent) * row.samples_per_second * row.seconds / 1000),
            short(row.spent(spent)),
            "best" if row is rows[0] else "",
        ]
        for row in ordered
    ]
    title = f"\nundominated: each is faster than all that take less {spent}"
    console.print(table_of(title, headings, cells))
    best, fastest = rows[0], ordered[0]
    if best is not fastest:
        less, longer = best.spent(spent) / fastest.spent(spent), best.seconds / fastest.seconds
        console.print(
            f"\nthe best takes {less:.3g} times the {spent} of the fastest for a sample, and its "
            f"iteration {longer:.3g} times the seconds"
        )


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
        *([f"batch_size = {row.batch_size}"] if row.batch_size else []),
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
        *([f'reference = "{row.reference}"'] if row.reference else []),
    ]
    for cut in row.cuts:
        lines += ["[[model.cuts]]", f"block = {cut['block']}"]
        lines += [f'{way} = "{cut[way]}"' for way in ("forward", "backward")]
    return "\n".join(lines)


def _gangs_of(row: Row) -> list[str]:
    """Return the lines for the gangs of a plan, if there are any."""
    if not row.has_gangs:
        return []
    sizes = {role: row.gangs_of(role) for role in ("rollout", "trainer")}
    lines = [f"{role}_gang = {own[0]}" for role, own in sizes.items() if len(own) == 1]
    shares = str(row.parallel["shard_weights"]).lower()
    lines.append("[parallel]")
    if len(row.stages) == 1:
        (blocks,) = row.stages
        lines += [f"stages = {len(blocks)}", f"stage_blocks = {list(blocks)}"]
    elif row.stages:
        lines.append(f"stages_by_size = {[list(own) for own in row.stages]}")
    lines.append(f"shard_weights = {shares}")
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
        row.title,
        f"{row.rollout}:{row.trainers}" if row.trainers else "both",
        ":".join("+".join(map(str, row.gangs_of(role))) for role in ("rollout", "trainer")),
        f"{row.helpers}/{row.assistants}",
        f"{row.stale_share:.0%}{f' x{row.max_staleness}' if row.max_staleness > 1 else ''}",
        f"{row.fragment_size}/{row.pack_size}",
        short(row.seconds, 4),
        short(row.samples_per_second),
        short(row.cost_per_1000_samples, 2),
        short(row.kwh_per_1000_samples, 2),
    ]


def write_json(rows: Sequence[Row]) -> None:
    """Print a list of objects, the best plan first."""
    sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
