"""A registered version, loaded by three lines, draws what the run's own evaluation draws."""

import io

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from PIL import Image
from safetensors import safe_open

from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.models.trainable import set_weights
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.stock import generate
from support.tiny_policies import TINY, load_trainable, moved_weights
from tasks.tracking.tracker import Tracker

PROMPTS = ["a red circle", "two blue squares"]
SIZE = {"height": 32, "width": 32}


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def as_user(runs_dir, monkeypatch):
    """MLflow as somebody uses it who loads a model; a run must not need it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{runs_dir}/mlflow.db")


@pytest.fixture(scope="module", params=["lora", "transformer"])
def trained(request, runs_dir, tiny_flux):
    """A run that registered a version: its config, its policy and its tracker."""
    lora = {"rank": 4, "alpha": 8} if request.param == "lora" else None
    tree = {
        "name": request.param,
        "model": {**TINY, "path": tiny_flux, "guidance_scale": 3.0, "max_sequence_length": 24},
        "train": {"lora": lora},
        "evaluation": {"num_steps": 3},
        "tracking": {"runs_dir": str(runs_dir)},
    }
    config = RunConfig.model_validate(tree)
    policy = load_trainable(
        tiny_flux, "float32", config.train.lora, guidance_scale=3.0, max_sequence_length=24
    )
    weights = moved_weights(policy, scale=0.05)
    set_weights(policy, weights)
    folder = runs_dir / request.param
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    tracker = Tracker.start(config, request.param, folder)
    exported = folder / request.param
    exported.mkdir()
    if lora:
        save_adapter(policy, exported)
    else:
        save_transformer(policy.transformer, exported, weights, shard_bytes=20_000)  # many files
    tracker.log_model(exported, 7, "abc")
    tracker.finish("FINISHED")
    assert not tracker._spool.num_unsent
    return config, policy, tracker


def test_three_lines_give_the_pipeline_of_the_version(trained, as_user):
    config, policy, _ = trained
    made = sample_images(
        policy, [*map(Prompt, PROMPTS)], [3, 7], num_samples=1, num_steps=3, seed=11
    )
    noise = [
        initial_latent(policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE)
        for i in (3, 7)
    ]
    pipeline = mlflow.pyfunc.load_model(f"models:/{config.name}/1").get_raw_model()
    pipeline.to("cpu").set_progress_bar_config(disable=True)
    found = generate(pipeline, "flux", PROMPTS, torch.cat(noise), output_type="pt", **SIZE)
    torch.testing.assert_close(found, made, rtol=0, atol=1e-5)
    base = load_trainable(config.model.path, "float32", max_sequence_length=24)
    before = sample_images(
        base, [*map(Prompt, PROMPTS)], [3, 7], num_samples=1, num_steps=3, seed=11
    )
    assert (before - made).abs().max() > 0.01


def test_the_signature_is_a_prompt_in_and_an_image_out(trained, as_user):
    config, _, _ = trained
    model = mlflow.pyfunc.load_model(f"models:/{config.name}/1", model_config={"device": "cpu"})
    assert model.metadata.get_input_schema().input_names() == ["prompt"]
    assert model.metadata.get_output_schema().input_names() == ["image"]
    (png,) = model.predict({"prompt": ["a red circle"]})
    with Image.open(io.BytesIO(png)) as image:
        assert image.size == (32, 32)
        assert np.asarray(image).std() > 0


def test_the_model_is_the_runs_and_holds_no_base_model(trained, runs_dir):
    config, _, tracker = trained
    client = MlflowClient(tracker.uri)
    (version,) = client.search_model_versions(f"name = '{config.name}'")
    assert version.run_id == tracker.mlflow_run_id
    assert version.tags == {"digen.policy_version": "7", "digen.weights_hash": "abc"}
    (output,) = client.get_run(tracker.mlflow_run_id).outputs.model_outputs
    assert output.step == 7
    assert client.get_logged_model(output.model_id).name == config.name
    assert output.model_id in version.source
    names = set()
    for file in (runs_dir / config.name / "model").rglob("*.safetensors"):
        with safe_open(file, "numpy") as tensors:
            names |= set(tensors.keys())
    assert names
    if config.train.lora is not None:
        assert all("lora" in name for name in names)
    assert not any(name.startswith(("text_model", "encoder", "decoder")) for name in names)


def test_registering_twice_makes_one_version(trained):
    config, _, tracker = trained
    tracker._spool.folder.joinpath("sent.json").unlink()
    tracker._sender._delivery.deliver([e for e in tracker._spool.read() if e["kind"] == "model"])
    assert len(MlflowClient(tracker.uri).search_model_versions(f"name = '{config.name}'")) == 1
