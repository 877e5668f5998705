"""The pictures of the pages that our own code draws, made again, most from runs of the main job.

Those of Prefect's pages are screenshots of a browser and are left alone.
"""

from collections.abc import Collection
from pathlib import Path
from statistics import median_low
from typing import Any, Final

from PIL import Image

from deployments.bench import learning
from deployments.local import run_training
from deployments.shipped import find_cluster, shipped_configs
from deployments.views.plans.pictures import draw_plan
from deployments.views.plans.plan import plans_for
from deployments.views.report import read_trace, timeline
from deployments.views.stages.blocks import blocks, draw_dag
from deployments.views.terminal import terminal
from digen_core.config.load import load_config
from digen_core.config.run import NO_LIMITS, RunConfig
from digen_core.trace.drawing import COLOURS
from digen_core.trace.page import png_of
from digen_core.transport.files import replace_bytes, written_whole

TIMELINE: Final = "timeline.png"
BEFORE_AFTER: Final = "shapes-before-after.png"
EDITS: Final = "edits-before-after.png"
LEARNING: Final = "learning.png"
IN_STAGES: Final[dict[str, dict[str, Any]]] = {
    "flux-blocks.png": {"parallel.stages": 4},
    "room-stages.png": {"parallel.stages": 4, "parallel.stage_blocks": (11, 22, 12, 12)},
}
"""Pictures of a recipe's blocks, and its settings: the second is the plan of a page."""
OF_PLANS: Final = "flow_grpo_flux_fast"
TWO_SITES: Final = "two-sites-plan.png"
BETWEEN_SITES: Final[dict[str, Any]] = {
    "schedule.layout": "tcss",
    "schedule.max_stale_share": 0.5,
    "schedule.max_staleness": 4,
}
"""Settings of the plan of ``TWO_SITES``, as its page has them."""
PICTURES: Final = (TIMELINE, BEFORE_AFTER, EDITS, LEARNING, *IN_STAGES, TWO_SITES)

LEARNING_LAYOUTS: Final = ("elastic", "tcss")
LEARNING_SEEDS: Final = (0, 1)
LEARNING_ITERATIONS: Final = 80
METRIC: Final = "shapes/exact"


def main(names: Collection[str], output: Path, folder: Path) -> None:
    """Make pictures, and say which others lie beside them and were left alone.

    Args:
        names: of ``PICTURES``.
        output: folder that gets them.
        folder: that gets the runs.

    Raises:
        RunFailedError: a run failed; pictures made before are there.
        RunStoppedError: somebody stopped a run.
    """
    console = terminal()
    config = _whole_job("shapes", folder)
    if {TIMELINE, BEFORE_AFTER} & set(names):
        run_dir = Path(run_training(config).run_dir)
        if TIMELINE in names:
            console.print(draw_timeline_of(run_dir, output / TIMELINE), markup=False)
        if BEFORE_AFTER in names:
            join_grids(run_dir, output / BEFORE_AFTER)
    if EDITS in names:
        run_dir = Path(run_training(_whole_job("shapes_edit", folder)).run_dir)
        join_grids(run_dir, output / EDITS)
    if LEARNING in names:
        draw_learning(config, folder, output / LEARNING)
    _draw_plans(names, output)
    console.print(f"made in {output}: {', '.join(names)}", markup=False)
    if others := left_alone(output):
        console.print(f"left alone, screenshots of a browser: {', '.join(others)}", markup=False)


def _draw_plans(names: Collection[str], output: Path) -> None:
    """Draw the pictures of plans, which need no run."""
    recipe = shipped_configs()[OF_PLANS]
    for name in (own for own in IN_STAGES if own in names):
        config = load_config(recipe, IN_STAGES[name])
        draw_dag(config, blocks(config), output / name)
    if TWO_SITES in names:
        best, *_ = plans_for(load_config(recipe, BETWEEN_SITES), find_cluster("16x-two-sites"))
        replace_bytes(output / TWO_SITES, png_of(draw_plan(best), COLOURS))


def _whole_job(name: str, folder: Path) -> RunConfig:
    """Return a shipped config with all of its iterations, however slow the machine.

    The samples are those of the tables in the pages.
    """
    config = load_config(shipped_configs()[name])
    tracking = config.tracking.model_copy(update={"runs_dir": str(folder)})
    return config.model_copy(update={"tracking": tracking, **NO_LIMITS})


def draw_timeline_of(run_dir: Path, path: Path) -> str:
    """Draw the iteration of median length of a run; return a sentence that says which it is."""
    trace = read_trace(run_dir)
    _, typical = median_low((window.seconds, index) for index, window in trace.windows.items())
    replace_bytes(path, png_of(timeline(trace, typical), COLOURS))
    return f"{path.name} shows iteration {typical + 1} of {run_dir}"


def join_grids(run_dir: Path, path: Path) -> None:
    """Set the samples of held-out prompts before a run beside those after it."""
    grids = [Image.open(run_dir / "grids" / f"{tag}.png") for tag in ("before", "after")]
    size = sum(grid.width for grid in grids), max(grid.height for grid in grids)
    joined, left = Image.new("RGB", size, "white"), 0
    for grid in grids:
        joined.paste(grid, (left, 0))
        left += grid.width
    with written_whole(path) as unfinished:
        joined.save(unfinished, "PNG", optimize=True)


def draw_learning(config: RunConfig, folder: Path, path: Path) -> None:
    """Draw what the serial loop and layouts learn from the same number of samples."""
    config = config.model_copy(update={"num_iterations": LEARNING_ITERATIONS})
    learning.main(config, LEARNING_LAYOUTS, LEARNING_SEEDS, METRIC, folder)
    replace_bytes(path, (folder / LEARNING).read_bytes())


def left_alone(output: Path) -> list[str]:
    """Return the names of the pictures in a folder that no code of ours draws."""
    return sorted(path.name for path in output.glob("*.png") if path.name not in PICTURES)
