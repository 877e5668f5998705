"""Helpers of the integration tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from digen_core.config.run import RunConfig
from digen_core.records import IterationRecord
from digen_core.transport.arrays import Weights
from flows.runtime.observers import Observer
from support.tiny_policies import TINY

if TYPE_CHECKING:
    from digen_core.reference.loop import SerialRun

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}  # of a run's weights to the reference's

PROMPTS = [
    "a red circle",
    "a blue square",
    "two green triangles",
    "a red circle left of a blue square",
    "three blue circles",
]
HELD_OUT = ["a green square", "two red triangles", "a blue circle above a red square"]


def tree_of(model: str, folder: Path) -> dict[str, Any]:
    """Write prompts into a folder and return the config of a small run, as a tree to be changed."""
    train, evaluation = folder / "train.txt", folder / "evaluation.txt"
    train.write_text("\n".join(PROMPTS))
    evaluation.write_text("\n".join(HELD_OUT))
    return {
        "name": "test",
        "num_iterations": 3,
        "model": {"path": model, "dtype": "float64", **TINY},
        "prompts": {"train": str(train), "evaluation": str(evaluation)},
        "rewards": {"smooth_rewards:brightness": 1.0},
        "rollout": {
            "prompts_per_iteration": 2,
            "group_size": 4,
            "fragment_size": 4,
            "num_steps": 3,
        },
        "train": {"learning_rate": 1e-3, "pack_size": 4, "lora": {"rank": 4, "alpha": 8}},
        "evaluation": {"samples_per_prompt": 2, "num_steps": 2, "grid_prompts": 2},
        "tracking": {"runs_dir": str(folder / "runs")},
    }


OWN_STEPS = (4, 2, None, 3, 2)
"""Of the prompts of ``with_own_steps``; None is a row that says nothing."""


def with_own_steps(
    tree: dict[str, Any], own_steps: Sequence[int | None] = OWN_STEPS
) -> dict[str, Any]:
    """Return the tree with prompts that say in how many steps they are denoised."""
    path = Path(tree["prompts"]["train"]).with_name("steps.jsonl")
    rows = [{"prompt": p, "T": n} for p, n in zip(PROMPTS, own_steps, strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))
    most = max(own for own in own_steps if own)
    changes = {"prompts.train": str(path), "prompts.steps_column": "T", "rollout.num_steps": most}
    return merged(tree, changes)


def merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay dotted changes over a config tree."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return result


def only_run(tree: dict[str, Any]) -> Path:
    """Return the folder of the only run in a config's runs_dir."""
    (config,) = Path(tree["tracking"]["runs_dir"]).glob("*/config.json")
    return config.parent


def training_in_mlflow(runs_dir: Path | str) -> Any:
    """Return the only training in the database of a folder, past its nested evaluations."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{runs_dir}/mlflow.db")
    (experiment,) = (e for e in client.search_experiments() if e.name == "digen")
    runs = client.search_runs([experiment.experiment_id])
    (found,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    return found


def reference(config: RunConfig, **options: Any) -> "SerialRun":
    """Run the serial loop for a config."""
    from digen_core.data.prompts import train_prompts
    from digen_core.models.loading import load_trainable
    from digen_core.models.policy import ALL_PARTS
    from digen_core.reference.loop import post_train_serially
    from digen_core.rewards import reward_functions

    torch.manual_seed(1)  # version 0 may not depend on the global generator
    policy = load_trainable(config, ALL_PARTS)
    rewards = reward_functions(config.rewards, policy.device)  # float32 rounds by device
    return post_train_serially(config, policy, train_prompts(config), rewards, **options)


def initial(config: RunConfig) -> Weights:
    """Return version 0."""
    from digen_core.models.loading import load_trainable
    from digen_core.models.policy import TRAINER_PARTS
    from digen_core.models.trainable import initial_weights

    policy = load_trainable(config, TRAINER_PARTS)
    return initial_weights(policy, config.train.lora, seed=config.seed)


def distance(left: Weights, right: Weights) -> float:
    """Largest difference relative to the largest weight."""
    assert left.keys() == right.keys()
    scale = np.max([np.abs(value).max() for value in right.values()])
    return float(np.max([np.abs(left[name] - right[name]).max() for name in right]) / scale)


class Watch(Observer):
    """Notes what a run shows."""

    def __init__(self) -> None:
        self.records: list[IterationRecord] = []
        self.warnings: list[str] = []

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)

    def on_iteration(self, record: IterationRecord) -> None:
        self.records.append(record)
