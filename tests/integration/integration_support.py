"""Helpers of the integration tests."""

from pathlib import Path

PROMPTS = [
    "a red circle",
    "a blue square",
    "two green triangles",
    "a red circle left of a blue square",
    "three blue circles",
]
HELD_OUT = ["a green square", "two red triangles", "a blue circle above a red square"]


def tree_of(model: str, folder: Path) -> dict:
    """Write prompts into a folder and return the config of a small run, as a tree to be changed."""
    train, evaluation = folder / "train.txt", folder / "evaluation.txt"
    train.write_text("\n".join(PROMPTS))
    evaluation.write_text("\n".join(HELD_OUT))
    return {
        "name": "test",
        "num_iterations": 3,
        "model": {"path": model, "dtype": "float64"},
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


def merged(tree: dict, changes: dict) -> dict:
    """Lay dotted changes over a config tree."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return result


def only_run(tree: dict) -> Path:
    """Return the folder of the only run in a config's runs_dir."""
    (config,) = Path(tree["tracking"]["runs_dir"]).glob("*/config.json")
    return config.parent
