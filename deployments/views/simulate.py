"""``digen simulate``: what each layout makes of a scenario, at its best split."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches

from pydantic import ValidationError
from rich.console import Console

from deployments.views.terminal import borderless, terminal
from digen_core.config.train import DealtBy
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.errors import UserError
from digen_core.planning.search import Fixed, Plan, search
from digen_core.sim.bounds import floor_of, lower_bound
from digen_core.sim.scenario import Scenario

LEAST_ITERATIONS = 2  # the first one is not like the others


@dataclass(frozen=True, slots=True)
class Row:
    """A layout at its best split. Seconds are those of an iteration in steady state."""

    layout: LayoutName
    rollout: int  # devices that generate; in colocated layouts all do both
    trainers: int
    helpers: int  # trainers that may generate
    assistants: int  # rollout devices that may train
    stale_share: float  # of the groups
    seconds: float
    floor: float  # no device ever waits
    share_of_floor: float
    lower_bound: float  # of any schedule on these devices, with such a stale share
    share_of_bound: float
    max_staleness: int
    mean_staleness: float
    busy_share: float
    over_colocated: float  # times as fast
    over_colocated_strong: float


def simulate(
    scenario: Scenario,
    layouts: Iterable[LayoutName],
    fixed: Fixed,
    *,
    num_iterations: int,
    seed: int,
) -> list[Row]:
    """Find each layout's best split and simulate it.

    Args:
        scenario: the recipe, the cluster and what things cost.
        layouts: to compare; the speed-ups are over the colocated ones in any case.
        fixed: quantities that are not searched for.
        num_iterations: of each simulation.
        seed: the first one of the jitter.

    Raises:
        UserError: what is fixed does not fit the scenario.
    """
    _check(scenario, fixed)

    def plan(layout: LayoutName) -> Plan:
        return search(scenario, layout, fixed, num_iterations=num_iterations, seed=seed)

    baselines = {layout: plan(layout) for layout in LAYOUTS if LAYOUTS[layout].colocated}
    plans = [baselines.get(layout) or plan(layout) for layout in dict.fromkeys(layouts)]
    seconds = [baseline.seconds for baseline in baselines.values()]
    return [_row(scenario, plan, *seconds) for plan in plans]


def with_updates(scenario: Scenario, updates: int | None, dealt_by: DealtBy | None) -> Scenario:
    """Return a scenario with other updates in an iteration; None: with its own.

    Raises:
        UserError: its groups, or samples, cannot be dealt to so many.
    """
    given = {"updates": updates, "dealt_by": dealt_by}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        return Scenario.model_validate({**scenario.model_dump(), **changes})
    except ValidationError as error:
        own = scenario.model_copy(update=changes)
        raise UserError(
            f"--updates is {own.updates}, of {own.epochs} epoch(s); use 1 to 1000, so many that "
            f"each epoch's share the {own.workload.dealt_units} {own.dealt_by} equally"
        ) from error


def layouts_of(names: Sequence[str] | None) -> list[LayoutName]:
    """Return the layouts of these names, which may have a plus; all if there are none.

    Raises:
        UserError: there is no such layout.
    """
    by_name = {str(layout): layout for layout in LAYOUTS}
    found = []
    for name in names or by_name:
        layout = by_name.get(name.removeprefix("+"))
        if layout is None:
            near = get_close_matches(name, by_name, 1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(by_name)}"
            raise UserError(f"there is no layout {name}; {hint}")
        found.append(layout)
    return found


HEADINGS = (
    "split\nR:M",
    "helpers\n/assist",
    "\nseconds",
    "of\nfloor",
    "\nbound",
    "of\nbound",
    "stale\nmax/avg",
    "\nbusy",
    "x col/\nx strong",
)


def print_rows(rows: Sequence[Row], title: str, console: Console | None = None) -> None:
    """Print a table, one row per layout."""
    console = console or terminal()
    table = borderless(title, gap=1)
    table.add_column("\nlayout", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.layout,
            f"{row.rollout}:{row.trainers}" if row.trainers else "both",
            f"{row.helpers}/{row.assistants}",
            f"{row.seconds:.1f}",
            f"{row.share_of_floor:.0%}",
            f"{row.lower_bound:.1f}",
            f"{row.share_of_bound:.0%}",
            f"{row.max_staleness}/{row.mean_staleness:.2f}",
            f"{row.busy_share:.0%}",
            f"{row.over_colocated:.2f}/{row.over_colocated_strong:.2f}",
        )
    console.print(table)


def write_json(rows: Sequence[Row]) -> None:
    """Print a list of objects, one per layout."""
    sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _row(scenario: Scenario, plan: Plan, colocated: float, colocated_strong: float) -> Row:
    choice, report = plan.choice, plan.report
    rollout = scenario.devices if choice.num_rollout is None else choice.num_rollout
    floor = floor_of(scenario)
    bound = lower_bound(
        scenario,
        choice.num_rollout,
        stale_share=choice.stale_share,
        pack_size=None if LAYOUTS[choice.layout].packed else 1,
    )
    return Row(
        layout=choice.layout,
        rollout=rollout,
        trainers=scenario.devices - rollout,
        helpers=choice.helpers,
        assistants=choice.assistants,
        stale_share=choice.stale_share,
        seconds=plan.seconds,
        floor=floor,
        share_of_floor=floor / plan.seconds,
        lower_bound=bound,
        share_of_bound=bound / plan.seconds,
        max_staleness=report.max_staleness,
        mean_staleness=report.mean_staleness,
        busy_share=report.mean_busy_share,
        over_colocated=colocated / plan.seconds,
        over_colocated_strong=colocated_strong / plan.seconds,
    )


def _check(scenario: Scenario, fixed: Fixed) -> None:
    """Refuse quantities that the scenario's devices do not have.

    Raises:
        UserError: naming the option, its value and what it may be.
    """
    split, devices = fixed.num_rollout, scenario.devices
    if split is not None and not 1 <= split < devices:
        raise UserError(f"--split is {split}; of {devices} devices use 1 to {devices - 1}")
    at_split = "" if split is None else f" with --split {split}"
    for option, value, most in (
        ("--helpers", fixed.helpers, devices - (split or scenario.splits[0])),
        ("--assistants", fixed.assistants, split or devices - 1),
        ("--stale-share", fixed.stale_share, 1),
    ):
        if value is not None and not 0 <= value <= most:
            raise UserError(f"{option} is {value}; use 0 to {most}{at_split}")
    if (fixed.helpers or 0) + (fixed.assistants or 0) > devices:
        raise UserError(
            f"--helpers {fixed.helpers} and --assistants {fixed.assistants} are more than the "
            f"{devices} devices"
        )
