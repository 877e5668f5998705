"""Parameters of runs and evaluations, and an evaluation's metrics, by their names in MLflow."""

import json
from collections.abc import Mapping
from typing import Any, Final

from digen_core.config.run import RunConfig
from digen_core.maths.statistics import PROMPT_WINS, WINS, error_of
from digen_core.records import EvaluationReport

RESUMED: Final = "resumed."
"""How tags begin that say with what a run was resumed, as its parameters stay as they are."""


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the leaves of a nested dict as dotted keys and texts (JSON, but strings as is)."""
    leaves: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return leaves


def tags_of_changes(before: RunConfig, now: RunConfig) -> dict[str, str]:
    """Return the parameters that another config of a run changes, as tags of their new values."""
    old, new = flatten(before.model_dump()), flatten(now.model_dump())
    keys = (key for key in old | new if old.get(key) != new.get(key))
    return {RESUMED + key: new.get(key, "null") for key in keys}


def current_params(params: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a run as it was resumed last, from those it has in MLflow."""
    changed = {key: own for key, own in tags.items() if key.startswith(RESUMED)}
    return {**params, **{key.removeprefix(RESUMED): own for key, own in changed.items()}}


def params_of_evaluation(config: RunConfig, report: EvaluationReport) -> dict[str, str]:
    """Return the parameters of an evaluation's own run."""
    settings = {
        "evaluation": config.evaluation.model_dump() | {"num_steps": config.evaluation_steps},
        "prompts": {"evaluation": config.prompts.evaluation},
        "rewards": {
            name: {"type": own.type, **own.model_dump(exclude_defaults=True)}
            for name, own in config.rewards.items()
        },
        "policy_version": report.version,
        "num_prompts": report.num_prompts,
        "num_samples": report.num_samples,
        "seed": config.seed,
    }
    return flatten(settings)


def metrics_of_evaluation(report: EvaluationReport) -> dict[str, float]:
    """Return the means and the wins of an evaluation, with their standard errors."""
    found: dict[str, float | None] = {}
    for name, mean in report.rewards.items():
        found |= {f"evaluation/{name}": mean}
        found |= {error_of(f"evaluation/{name}"): report.standard_error(name)}
    for name, wins in report.wins.items():
        for metric, share in ((WINS, wins.pairs), (PROMPT_WINS, wins.prompts)):
            if share is not None:
                own = f"{metric}evaluation/{name}"
                found |= {own: share.value, error_of(own): share.error}
    return {name: value for name, value in found.items() if value is not None}
