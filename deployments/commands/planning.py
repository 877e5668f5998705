"""Commands that predict: simulate, plan and size."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deployments.overrides import ConfigTokens, config_of, parse_arguments
from deployments.shipped import find_cluster, find_scenario, recipe_files
from digen_core.config.run import RunConfig
from digen_core.config.train import DealtBy
from digen_core.errors import UserError
from digen_core.planning.spending import Objective, Spent

ITERATIONS = 4  # of a simulation
MOST_ITERATIONS = 1000
MOST_MEMBERS = 64  # of a gang


def simulate(
    scenario: str | None = None,
    /,
    *,
    beds: Annotated[bool, Parameter(negative="")] = False,
    layout: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    split: int | None = None,
    helpers: int | None = None,
    assistants: int | None = None,
    stale_share: float | None = None,
    updates: int | None = None,
    dealt_by: DealtBy | None = None,
    iterations: int = ITERATIONS,
    seed: int = 0,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Compare layouts on a cluster that is only simulated, each at its best split.

    Example: digen simulate B --layout tsp elastic
    Example: digen simulate B --layout disaggregated gap elastic --updates 2
    Example: digen simulate --beds

    Args:
        scenario: A, A2, B, B2, C, D, E, F, G or H (deployments/scenarios), or a TOML file like
            those.
        beds: Without SCENARIO, compare instead where the blocks of a model are put on devices of
            which some are far from others: 24 and 48, with links of 8 Mb/s to 10 Gb/s. It takes
            about half a minute.
        layout: Layouts to compare; default: all.
        split: Rollout devices, the others train; default: the fastest with at least a quarter.
        helpers: Trainers that may generate; default: as many as pay.
        assistants: Rollout devices that may train; default: as many as pay.
        stale_share: Share of the groups that may be generated with the version before, in tcss and
            elastic; default: in tcss the fastest of 0, 0.25 and 0.5, in elastic 0.
        updates: Optimizer steps of an iteration; default: as SCENARIO says.
        dealt_by: What is dealt to them: groups or samples; default: as SCENARIO says.
        iterations: Of each simulation; at least 12 with stale groups.
        seed: Same seed, same table.
        as_json: Print a list of objects instead of the table.
    """
    from deployments.views import simulate as command

    least = command.LEAST_ITERATIONS
    if not least <= iterations <= MOST_ITERATIONS or not 0 <= seed < 2**63:
        raise UserError(
            f"--iterations is {iterations} and --seed {seed}; use {least} <= iterations <= "
            f"{MOST_ITERATIONS}, since each is simulated, and 0 <= seed < 2^63"
        )
    if beds:
        more = None if iterations == ITERATIONS else iterations
        given = (scenario, layout, split, helpers, assistants, stale_share, updates, dealt_by, more)
        return _simulate_beds(given, seed, as_json=as_json)
    if scenario is None:
        raise UserError("which scenario? For example: digen simulate B; or --beds")
    found = command.with_updates(find_scenario(scenario), updates, dealt_by)
    layouts = command.layouts_of(layout)

    from digen_core.planning.search import Fixed

    fixed = Fixed(split, helpers, assistants, stale_share)
    rows = command.simulate(found, layouts, fixed, num_iterations=iterations, seed=seed)
    if as_json:
        command.write_json(rows)
    else:
        command.print_rows(rows, found.description)
    return 0


def _simulate_beds(given: Sequence[object], seed: int, *, as_json: bool) -> int:
    """Compare placements of blocks on beds; ``given`` are the options that are not for them."""
    if any(value is not None for value in given):
        raise UserError("--beds is of no SCENARIO; beside it only --seed and --json count")

    from deployments.views.stages import beds as view

    found = view.compare(seed)
    if as_json:
        view.write_json(found)
    else:
        view.print_beds(found)
    return 0


def plan(
    *tokens: ConfigTokens,
    cluster: str,
    objective: Objective = "seconds",
    within: float | None = None,
    picture: Path | None = None,
    timeline: Path | None = None,
    codecs: Annotated[bool, Parameter(negative="")] = False,
    fleet: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Predict which layout, split and sizes are the best for a config on a cluster.

    Example: digen plan shapes --cluster 2-cores
    Example: digen plan shapes --cluster 16x-mixed --objective money --within 0.03
    Example: digen plan shapes --cluster 16x-mixed --timeline plan.png
    Example: digen plan shapes --cluster 2-cores --fleet

    Args:
        tokens: CONFIG and settings, as in 'digen train'. Packs are at most as large as its own,
            in each share of a gang that is found; stale groups are considered if its
            schedule.max_stale_share is above 0.
        cluster: 2-cores, 16x-mixed, 16x-two-sites, 24x-h20-h800, 32x-h100, 8x-h100, 32x-h100-a100,
            32x-h100-open or 32x-h100-gangs (deployments/clusters), or a TOML file like those. The
            last four estimate what the config's model costs; 32x-h100-open leaves open which GPUs
            hold one model.
        objective: What a sample is to take the least of. For money and energy devices may be left
            out; the plans are those of which each is faster than all that take less.
        within: With money or energy: share of the fastest plan's seconds by which plans may be
            slower; default: any.
        picture: With money or energy: PNG file for a picture of the plans.
        timeline: PNG file for a picture of an iteration of the best plan: what each device does
            when, and why it is idle.
        codecs: Let the links between stages be coded where they are slower than these, by the
            mildest of int8, and int8 with int4 for gradients, that is enough: model.cuts.
        fleet: Plan for one device more, and for one less, of each group of the cluster, too: what
            they would bring in speed, and cost for a sample. For who adds and removes devices.
        as_json: Print a list of objects, the best plan first, instead of the table.
    """
    config = config_of(tokens, "digen plan")

    from deployments.views.plans import plan as command
    from deployments.views.plans import table
    from deployments.views.plans.row import row_of

    found, aim = find_cluster(cluster), command.aim_of(objective, within)
    if fleet and objective != "seconds":
        raise UserError(
            f"--objective is {objective}, but --fleet says what devices bring in speed; use one of "
            "them"
        )
    _check_picture(picture, aim.spent)
    _check_timeline(timeline, picture, fleet=fleet)
    if fleet:
        from deployments.views.plans import fleet as fleet_view

        changes = fleet_view.changes(config, found)
        if as_json:
            fleet_view.write_json(changes)
        else:
            fleet_view.print_changes(changes, found.description)
        return 0
    plans = command.plans_for(config, found, aim, may_code=codecs)
    rows = [row_of(own) for own in plans]
    if timeline is not None:
        from deployments.views.plans.pictures import write_timeline  # matplotlib

        write_timeline(plans[0], timeline)
    if picture is not None and aim.spent is not None:
        from deployments.views.plans.pictures import write_frontier

        write_frontier(rows, aim.spent, picture)
    if as_json:
        table.write_json(rows)
    else:
        table.print_plan(rows, found.description, objective)
    return 0


def _check_picture(path: Path | None, spent: Spent | None) -> None:
    """Check where a picture of plans is to be, if there is to be one; raises UserError."""
    if path is None:
        return
    if spent is None:
        raise UserError(
            f"--picture is {path}: of what plans take beside time; give --objective money or "
            "energy, too"
        )
    _check_name("--picture", path, ".png")


def _check_timeline(path: Path | None, picture: Path | None, *, fleet: bool) -> None:
    """Check where the timeline of a plan is to be, if there is to be one; raises UserError."""
    if path is None:
        return
    if path == picture:
        raise UserError(f"--timeline and --picture are both {path}; use another name for one")
    if fleet:
        raise UserError(
            f"--timeline is {path}: of one plan, but --fleet makes several; use one of them"
        )
    _check_name("--timeline", path, ".png")


def size(
    *tokens: ConfigTokens,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    markdown: Annotated[bool, Parameter(negative="")] = False,
    memory: Annotated[bool, Parameter(negative="")] = False,
    gang: int = 1,
    blocks: Annotated[bool, Parameter(negative="")] = False,
    dag: Path | None = None,
) -> int:
    """Count the parameters, arithmetic and bytes of a config's model, without its weights.

    Example: digen size flow_grpo_flux_pickscore
    Example: digen size flow_grpo_flux_pickscore --memory
    Example: digen size dance_grpo_flux --memory --gang 8 --parallel.shard_weights true
    Example: digen size flow_grpo_flux_fast --blocks
    Example: digen size flow_grpo_flux_fast --dag flux.png --parallel.stages 4

    Args:
        tokens: CONFIG and settings, as in 'digen train'; without CONFIG all shipped recipes, which
            takes some minutes.
        as_json: Print a list of objects instead of the table.
        markdown: Print the table as Markdown.
        memory: Count what devices and hosts have to hold while they generate and train instead.
        gang: With --memory, GPUs that hold the model together, as the config's table parallel says:
            what each of them has to hold.
        blocks: Count what each block of CONFIG's transformer takes instead.
        dag: PNG or SVG file for a picture of the transformer's blocks, cut where parallel.stages
            has them cut, and of the operators in a block of each kind.
    """
    if not 1 <= gang <= MOST_MEMBERS or (gang > 1 and not memory):
        raise UserError(f"--gang is {gang}; use 1 to {MOST_MEMBERS}, with --memory")
    if as_json and markdown:
        raise UserError("--json and --markdown are two forms of the table; give one of them")
    named = parse_arguments(tokens).path
    if blocks or dag is not None:
        if memory or not named:
            raise UserError("--blocks and --dag are of one CONFIG, and without --memory")
        config = config_of(tokens, "digen size")
        return _size_blocks(config, named.stem, dag=dag, as_json=as_json, markdown=markdown)
    files = [named] if named else recipe_files()
    configs = {file.stem: config_of(tokens if named else [str(file), *tokens]) for file in files}

    from deployments.views import memory as memory_view
    from deployments.views import size as view

    if memory:
        needs = {name: memory_view.needs_of(own, gang) for name, own in configs.items()}
        rows = memory_view.rows_of(needs)
        objects = {name: found.as_dict() for name, found in needs.items()}
    else:
        sizes = {name: view.size_of_samples(config) for name, config in configs.items()}
        rows = {name: view.quantities(found) for name, found in sizes.items()}
        objects = {name: asdict(found) for name, found in sizes.items()}
    if as_json:
        sys.stdout.write(view.as_json(objects) + "\n")
    elif markdown:
        sys.stdout.write(view.as_markdown(rows) + "\n")
    else:
        view.print_rows(rows)
    return 0


def _size_blocks(
    config: RunConfig, name: str, *, dag: Path | None, as_json: bool, markdown: bool
) -> int:
    """Count the blocks of a config's transformer, and draw them where that is asked for."""
    if dag is not None:
        _check_name("--dag", dag, ".png", ".svg")

    from deployments.views import size as sizes
    from deployments.views.stages import blocks as view

    chain = view.blocks(config)
    rows = view.rows_of(chain)
    if dag is not None:
        view.draw_dag(config, chain, dag)
    if as_json:
        sys.stdout.write(sizes.as_json({name: view.as_dict(chain)}) + "\n")
    elif markdown:
        sys.stdout.write(sizes.as_markdown(rows, "of a sample") + "\n")
    else:
        view.print_rows(rows, name)
    return 0


def _check_name(option: str, path: Path, *endings: str) -> None:
    """Check that a picture can be written there; raises UserError."""
    if path.suffix not in endings or not path.absolute().parent.is_dir():
        raise UserError(
            f"{option} is {path}; use a name with {' or '.join(endings)}, in a folder that is there"
        )
