"""Helpers of the integration tests."""

from pathlib import Path


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
