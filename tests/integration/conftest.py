"""A run config for the tiny FLUX, and clusters that several tests share."""

import pytest

PROMPTS = [
    "a red circle",
    "a blue square",
    "two green triangles",
    "a red circle left of a blue square",
    "three blue circles",
]
HELD_OUT = ["a green square", "two red triangles", "a blue circle above a red square"]


@pytest.fixture
def tree(tiny_flux, tmp_path) -> dict:
    """Config of a small run on it, as a tree to be changed."""
    train, evaluation = tmp_path / "train.txt", tmp_path / "evaluation.txt"
    train.write_text("\n".join(PROMPTS))
    evaluation.write_text("\n".join(HELD_OUT))
    return {
        "name": "test",
        "num_iterations": 3,
        "model": {"path": tiny_flux, "dtype": "float64"},
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
        "tracking": {"runs_dir": str(tmp_path / "runs")},
    }


@pytest.fixture(scope="session")
def cluster_address(request):
    """Return a function (rollout, trainers) -> address of a cluster of worker processes."""
    from contextlib import ExitStack

    from digen_core.config import ClusterConfig
    from tasks.cluster import local_devices, run_cluster

    stack, addresses = ExitStack(), {}

    def address_of(rollout: int, trainers: int) -> str:
        if (rollout, trainers) not in addresses:
            config = ClusterConfig(rollout_workers=rollout, trainer_workers=trainers)
            cluster = run_cluster(config, local_devices(config))
            addresses[rollout, trainers] = stack.enter_context(cluster)
        return addresses[rollout, trainers]

    with stack:
        yield address_of
