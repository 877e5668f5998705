"""MLflow's first view of an experiment: reward and evaluation as first columns and charts.

MLflow keeps a view that is shared by a link in a tag of the experiment; its format is that of what
its page writes for "Share" (MLflow 3). The link that a run prints names the view.
"""

import json
from typing import Any, Final

KEY: Final = "digen"
VIEW_TAG: Final = f"mlflow.sharedViewState.{KEY}"

FIRST: Final = {
    "evaluation": ("evaluation/reward",),
    "reward": ("reward/mean", "reward/std"),
    "time": ("time/iteration_seconds",),
}
"""Sections of charts, and their first metrics."""

COLUMNS: Final = (
    "attributes.`Created`",
    "metrics.`evaluation/reward`",
    "metrics.`standard_error/evaluation/reward`",
    "metrics.`reward/mean`",
    "attributes.`Duration`",
    "params.`algorithm.type`",
)


def view_state() -> str:
    """Return the view as its tag holds it."""
    sections = [
        {"uuid": f"digen-{name}", "name": name, "display": True}
        | {"isReordered": False, "deleted": False, "isGenerated": True}
        for name in FIRST
    ]
    charts = [_chart(metric, name) for name, metrics in FIRST.items() for metric in metrics]
    state = {
        "selectedColumns": COLUMNS,
        "compareRunSections": sections,
        "compareRunCharts": charts,
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
    }
    return json.dumps(state)


def _chart(metric: str, section: str) -> dict[str, Any]:
    return {
        "uuid": f"digen-{metric}",
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "metricSectionId": f"digen-{section}",
        "runsCountToCompare": 10,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": True,
        "useGlobalXaxisKey": True,
        "deleted": False,
        "isGenerated": True,
    }
