"""The flows behind the deployments ``plan`` and ``bench``: what these commands print, in the UI."""

from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact
from pydantic import Field

from deployments.bench import compute as bench_compute
from deployments.shipped import find_cluster
from deployments.views.plans import plan as planning
from digen_core.config.run import RunConfig
from digen_core.control.layout import LayoutName
from digen_core.planning.spending import Objective
from digen_core.preflight.run import check_inputs
from flows.configured import configured_flow
from tasks.views.markdown import escaped

Layout = LayoutName | Literal["auto"]


@configured_flow(name="plan", flow_run_name="plan {config.name} on {cluster}")
def plan(
    config: RunConfig,
    cluster: str = "2-cores",
    objective: Objective = "seconds",
    within: Annotated[float, Field(ge=0)] | None = None,
) -> list[dict[str, Any]]:
    """Predict which layout, split and sizes are the best; the table is an artifact.

    Args:
        config: Of the run that is planned.
        cluster: Name of one of deployments/clusters, or a TOML file like those.
        objective: What a sample is to take the least of.
        within: Share of the fastest plan's seconds by which one that takes less money or energy may
            be slower; null: any.
    """
    aim = planning.aim_of(objective, within)
    plans = [asdict(row) for row in planning.plan(config, find_cluster(cluster), aim)]
    rows = [{key: value for key, value in row.items() if key != "idle"} for row in plans]
    create_table_artifact(
        rows, key="plan", description=escaped(f"{config.name} on {cluster}, best first")
    )
    return rows


@configured_flow(name="bench", flow_run_name="bench {config.name}")
def bench(
    config: RunConfig,
    layouts: list[Layout] = ["colocated", "elastic"],  # noqa: B006 (a form's default; not changed)
    rounds: Annotated[int, Field(ge=1)] = 1,
    iterations: Annotated[int, Field(ge=1)] = 3,
) -> list[dict[str, Any]]:
    """Measure what layouts make of a config on this cluster; the table is an artifact.

    Args:
        config: Of the run; its own layout does not matter.
        layouts: To compare beside the serial loop, "auto" for the planner's choice.
        rounds: Rounds in which each of them runs once.
        iterations: To measure in each round, after one that warms up.
    """
    check_inputs(config)
    with TemporaryDirectory() as folder:
        say = get_run_logger().info
        measured = bench_compute.measure(config, layouts, rounds, iterations, folder, say)
    samples = config.samples_per_iteration
    rows = [
        {
            "layout": row.layout or row.name,
            "split": row.split,
            "seconds": round(row.median, 3),
            "samples/s": round(samples / row.median, 1),
        }
        for row in measured
    ]
    description = f"medians of {rounds} rounds, {samples} samples an iteration"
    create_table_artifact(rows, key="bench", description=description)
    return rows
