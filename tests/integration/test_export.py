"""What a run leaves of all weights: the average of its last version, from that one's checkpoint."""

from contextlib import ExitStack

import numpy as np
import pytest
from diffusers import FluxTransformer2DModel

from digen_core.config.run import RunConfig
from digen_core.data.draws import prompts_of_iteration
from digen_core.data.prompts import train_prompts
from support.checkpoints import names_in
from support.runs import Watch, merged, only_run

pytestmark = pytest.mark.slow

ALL_WEIGHTS = {
    "train.lora": None,
    "train.ema_decay": 0.9,
    "rewards": {"smooth_rewards:partly_equal": 1.0},
    "rollout.prompts_per_iteration": 1,
    "checkpoints.every": 10,
    "schedule.layout": "tsp",
}
WITH, WITHOUT = "a blue square", "a red circle"  # a signal


@pytest.fixture
def trained(tree, prefect_backend, tmp_path):
    """Return a function that trains on prompts, in that order, and returns the run's folder."""
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    def train(prompts, *watchers, **changes):
        tmp_path.joinpath("train.txt").write_text("\n".join(dict.fromkeys(prompts)))
        settings = {key.replace("__", "."): value for key, value in changes.items()}
        count = {"num_iterations": len(prompts)}
        for seed in range(100):
            settings |= count | {"seed": seed}
            config = RunConfig.model_validate(merged(tree, {**ALL_WEIGHTS, **settings}))
            drawn = [
                prompts_of_iteration(train_prompts(config), index, 1, seed=seed)[0].text
                for index in range(len(prompts))
            ]
            if drawn == prompts:
                break
        with ExitStack() as stack:
            for watcher in watchers:
                stack.enter_context(watching(watcher))
            post_train(config)
        return only_run(tree)

    return train


def assert_exported(folder, weights):
    assert names_in(folder / "transformer") == [
        "config.json",
        "diffusion_pytorch_model.safetensors",
    ]
    found = FluxTransformer2DModel.from_pretrained(folder / "transformer")
    assert dict(found.named_parameters()).keys() == weights.keys()
    for name, value in found.named_parameters():
        np.testing.assert_array_equal(value.detach().numpy(), weights[name].astype(np.float32))


@pytest.mark.nightly
def test_a_gangs_average_though_the_last_iteration_made_no_version(trained):
    from digen_core.checkpoints.manifest import read_manifest
    from digen_core.checkpoints.tensors import last_state

    folder = trained([WITH, WITHOUT], cluster__trainer_gang=2, parallel={"shard_weights": True})
    assert names_in(folder / "checkpoints") == ["v0001"]
    manifest = read_manifest(folder / "checkpoints" / "v0001")
    assert (manifest.num_files, manifest.num_iterations) == (2, 1)
    state = last_state(folder)
    assert any((state.weights[name] != value).any() for name, value in state.ema.items())
    assert_exported(folder, state.ema)
    kept = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert kept == {".lock"}


@pytest.mark.nightly
def test_a_run_whose_rewards_were_all_equal_leaves_version_0(trained, tree):
    from digen_core.checkpoints.manifest import read_manifest
    from support.runs import initial

    folder = trained([WITHOUT])
    config = RunConfig.model_validate_json((folder / "config.json").read_text())
    assert names_in(folder / "checkpoints") == ["v0000"]
    assert read_manifest(folder / "checkpoints" / "v0000").num_iterations == 0
    assert_exported(folder, initial(config))


class Damager(Watch):
    """Flips a bit of the weights in the last checkpoint, once, when the run is evaluated."""

    def __init__(self, tree):
        super().__init__()
        self.tree, self.is_done = tree, False

    def on_phase(self, text):
        if text.startswith("evaluating version 2") and not self.is_done:
            self.is_done = True
            file = only_run(self.tree) / "checkpoints" / "v0002" / "state.safetensors"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)


@pytest.mark.nightly
def test_a_checkpoint_that_is_damaged_is_made_again_before_it_is_exported(trained, tree):
    from digen_core.checkpoints.tensors import last_state

    damager = Damager(tree)
    settings = {"checkpoints__every": 1, "train__ema_decay": 0.0}
    folder = trained([WITH, "two green triangles"], damager, **settings)
    assert damager.is_done
    assert any("does not have the manifest's hash" in text for text in damager.warnings)
    assert_exported(folder, last_state(folder).ema)
