"""A whole run, and all that is left of it: files, MLflow, Prefect, and nothing on the workers."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from support.architecture import entries_of_a_run
from support.paths import ROOT
from support.runs import HELD_OUT, PROMPTS, Watch, merged, tree_of
from support.waiting import comes_to

pytestmark = pytest.mark.slow

CHANGES = {
    "num_iterations": 2,
    "model.dtype": "float32",
    "model.device": "cpu",
    "rollout.fragment_size": 2,
    "evaluation.every": 1,
    "evaluation.num_steps": "auto",
}
EVALUATING = "evaluating"  # begins what such a run says
TRAINED_STEPS = [0, 1]  # of 3
# 2 groups of 2 fragments; 8 samples at 2 steps make 4 packs of 4.
TASKS = {"encode g00 g01"}
TASKS |= {f"denoise g0{g} f{f} t0{t}" for g in (0, 1) for f in (0, 1) for t in range(3)}
TASKS |= {f"score g0{g} f{f}" for g in (0, 1) for f in (0, 1)}
TASKS |= {f"train p00{p}" for p in range(4)} | {"reduce"}


class Watching(Watch):
    """Notes what a run says, and what is on its workers when a flow of it has ended."""

    def __init__(self, client):
        super().__init__()
        self.client = client
        self.phases, self.evaluations, self.keys = [], [], []

    def on_step(self, done, total):
        pass

    def on_phase(self, text):
        self.phases.append(text)
        if text.startswith(EVALUATING):  # the scheduler frees keys a little later
            comes_to(lambda: len(states(keys_of(self.client))) <= 2)
        self.keys.append(states(keys_of(self.client)))

    def on_evaluation(self, tag, report):
        self.evaluations.append((tag, report))


def keys_of(client) -> list[str]:
    return sorted({str(key) for keys in client.has_what().values() for key in keys})


def states(keys: list[str]) -> list[str]:
    """All but the embeddings of prompts, which are kept for the run."""
    return [key for key in keys if not key.startswith("encode-")]


@pytest.fixture(scope="module")
def run(tiny_flux, cluster_address, prefect_backend, tmp_path_factory):
    """The run that all tests of this module look at."""
    from distributed import Client

    from flows.post_train import post_train
    from flows.runtime.observers import watching

    address = cluster_address(1, 1)
    tree = tree_of(tiny_flux, tmp_path_factory.mktemp("run"))
    changes = {**CHANGES, "cluster.scheduler_address": address}
    config = RunConfig.model_validate(merged(tree, changes))
    with Client(address, set_as_default=False) as client:
        watch = Watching(client)
        with watching(watch):
            report = post_train(config)
        # Our own connection does not count: what is left then is left for good.
        comes_to(lambda: not keys_of(client))
        left = keys_of(client)
    run_dir = Path(report.run_dir)
    return SimpleNamespace(config=config, report=report, dir=run_dir, watch=watch, left=left)


# --- files ------------------------------------------------------------------------------------


def test_the_report(run):
    report = run.report
    assert (report.version, report.num_iterations) == (2, 2)
    assert report.run_id == run.dir.name
    assert report.run_id.startswith("test-")
    assert (report.before.version, report.after.version) == (0, 2)
    for evaluation in (report.before, report.after):
        assert (evaluation.num_prompts, evaluation.num_samples) == (len(HELD_OUT), 6)
        assert evaluation.rewards.keys() == {"reward", "smooth_rewards:brightness/score"}
    assert report.seconds > 0
    assert "mlflow" in report.view


def test_the_config_is_kept_whole(run):
    assert RunConfig.model_validate_json((run.dir / "config.json").read_text()) == run.config


def test_its_folder_holds_what_the_page_says(run):
    """In both directions; what other settings add is seen where runs have them."""
    added = {"images", "trajectories", "nonfinite", "videos", "transformer", ".explain"}
    added |= {"sources", "tensorboard", "wandb", "profiles"}
    assert {path.name for path in run.dir.iterdir()} == entries_of_a_run() - added
    assert added < entries_of_a_run()


def test_evaluations_are_kept(run):
    tags = {"before": 0, "iteration-0001": 1, "after": 2}
    assert {path.stem for path in run.dir.glob("evaluation/*.json")} == tags.keys()
    for tag, version in tags.items():
        content = json.loads((run.dir / "evaluation" / f"{tag}.json").read_text())
        assert content["version"] == version
    assert [(tag, report.version) for tag, report in run.watch.evaluations] == list(tags.items())
    assert run.watch.evaluations[0][1] == run.report.before
    assert run.watch.evaluations[-1][1] == run.report.after


def test_trained_versions_are_compared_with_the_base_model_sample_by_sample(run):
    before, *others = (report for _, report in run.watch.evaluations)
    assert before.wins == {}
    for report in (before, *others):
        means = np.mean(report.by_sample["reward"], axis=1)
        assert means.tolist() == pytest.approx(report.by_prompt["reward"])
    for report in others:
        assert report.wins.keys() == report.rewards.keys()
        for name, wins in report.wins.items():
            own, base = np.array(report.by_sample[name]), np.array(before.by_sample[name])
            expected = ((own > base) + 0.5 * (own == base)).mean(axis=1)
            assert wins.pairs.value == pytest.approx(expected.mean())
            error = expected.std(ddof=1) / len(expected) ** 0.5
            assert wins.pairs.error == pytest.approx(error)


def test_every_sample_is_kept(run):
    from digen_core.data.draws import prompts_of_iteration
    from digen_core.data.prompts import Prompt
    from digen_core.transport.samples import read_samples

    rows = read_samples(run.dir / "samples").to_pylist()
    names = [(row["iteration"], row["group"], row["sample"]) for row in rows]
    assert names == [(i, g, s) for i in range(2) for g in range(2) for s in range(4)]
    for row in rows:
        assert row["policy_version"] == row["iteration"]
        assert row["worker"] == "rollout-0"
        assert row["steps"] == TRAINED_STEPS
        assert len(row["behaviour_logprobs"]) == len(TRAINED_STEPS)
        assert np.isfinite(row["behaviour_logprobs"]).all()
        assert row["reward"] == row["smooth_rewards:brightness/score"]
        assert row["trained"]
        assert row["denoise_seconds"] > 0
    for first in range(0, len(rows), 4):
        group = rows[first : first + 4]
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-9)
        by_reward = sorted(group, key=lambda row: row["reward"])
        assert by_reward == sorted(group, key=lambda row: row["advantage"])
    for iteration in range(2):
        expected = prompts_of_iteration([Prompt(p) for p in PROMPTS], iteration, 2, seed=0)
        got = [row["prompt"] for row in rows if row["iteration"] == iteration]
        assert got == [prompt.text for prompt in expected for _ in range(4)]


def test_records_tell_what_ran_where(run):
    for record in run.watch.records:
        assert record.version == record.iteration + 1
        assert {span.task for span in record.spans} >= TASKS
        for span in record.spans:
            assert span.queued <= span.ended
            assert span.started <= span.ended
            own = "rollout" if span.kind in ("encode", "denoise", "score") else "trainer"
            assert span.device == f"{own}-0" or span.kind == "push"
        assert {span.device for span in record.spans if span.kind == "push"} == {
            "rollout-0", "trainer-0",
        }  # fmt: skip
        assert record.metrics["train/max_log_ratio"] < 1e-5  # on-policy: replay is exact
        assert record.metrics["train/clip_fraction"] == 0
        assert record.metrics["groups/zero_variance"] == 0
        assert 0 < record.metrics["device/rollout-0/busy_fraction"] <= 1


# --- MLflow -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_run(run):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.dir.parent}/mlflow.db")
    experiment = client.get_experiment_by_name(run.config.tracking.experiment)
    name = f"attributes.run_name = '{run.report.run_id}'"
    (found,) = client.search_runs([experiment.experiment_id], name)
    return client, found


def artifacts_of(client, run_id: str, path: str | None = None) -> set[str]:
    found = set()
    for item in client.list_artifacts(run_id, path):
        found |= artifacts_of(client, run_id, item.path) if item.is_dir else {item.path}
    return found


def test_mlflow_has_the_run(run, mlflow_run):
    client, found = mlflow_run
    assert found.info.status == "FINISHED"
    assert found.info.run_name == run.report.run_id
    assert found.data.params["rollout.fragment_size"] == "2"
    for name in ("reward/mean", "train/loss", "train/grad_norm", "time/iteration_seconds"):
        assert [m.step for m in client.get_metric_history(found.info.run_id, name)] == [1, 2]
    evaluated = client.get_metric_history(found.info.run_id, "evaluation/reward")
    assert {m.step: m.value for m in evaluated} == {
        report.version: report.rewards["reward"] for _, report in run.watch.evaluations
    }
    won = client.get_metric_history(found.info.run_id, "wins/evaluation/reward")
    assert {m.step: m.value for m in won} == {
        report.version: report.wins["reward"].pairs.value for _, report in run.watch.evaluations[1:]
    }


def test_mlflow_has_each_evaluation_as_a_nested_run(run, mlflow_run):
    client, found = mlflow_run
    parent = f"tags.`mlflow.parentRunId` = '{found.info.run_id}'"
    nested = client.search_runs([found.info.experiment_id], parent)
    assert {
        run.info.run_name.removeprefix(f"{found.info.run_name}-"): run.data.metrics
        for run in nested
    } == {
        tag: {f"evaluation/{name}": value for name, value in report.rewards.items()}
        | {
            f"standard_error/evaluation/{name}": report.standard_error(name)
            for name in report.rewards
        }
        | {
            metric: value
            for name, wins in report.wins.items()
            for metric, value in {
                f"wins/evaluation/{name}": wins.pairs.value,
                f"standard_error/wins/evaluation/{name}": wins.pairs.error,
                f"prompt_wins/evaluation/{name}": wins.prompts.value,
                f"standard_error/prompt_wins/evaluation/{name}": wins.prompts.error,
            }.items()
        }
        for tag, report in run.watch.evaluations
    }


def test_each_version_names_its_parent(run, mlflow_run, tmp_path):
    from digen_core.checkpoints.tensors import last_state

    client, found = mlflow_run
    path = client.download_artifacts(found.info.run_id, "versions.jsonl", tmp_path)
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [line["version"] for line in lines] == [0, 1, 2]
    assert [line["parent"] for line in lines] == [None, lines[0]["hash"], lines[1]["hash"]]
    assert lines[-1]["hash"] == last_state(run.dir).weights_hash


def test_every_metric_is_in_the_docs(mlflow_run):
    _, found = mlflow_run
    documented = documented_metrics()
    assert "system/rollout-0/cpu_percent" in found.data.metrics
    for name in found.data.metrics:
        assert any(pattern.fullmatch(name) for pattern in documented), f"{name} is not in the docs"


def documented_metrics() -> list[re.Pattern]:
    """The names of the table in docs/algorithms.md; words in capitals stand for any."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    rows = re.findall(r"^\| (`[a-z_]+/.*?) \|", text[text.index("## Metrics") :], re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 30
    return [re.compile(re.sub(r"\b[A-Z]+\b", "[^/]+", name)) for name in names]


def test_mlflow_has_the_artifacts(run, mlflow_run, tmp_path):
    from PIL import Image

    client, found = mlflow_run
    names = artifacts_of(client, found.info.run_id)
    assert {"config.json", "evaluation/before.json", "evaluation/after.json"} <= names
    assert {"environment.txt", "timelines/iteration-0001.png"} <= names
    assert {"grids/before.png", "grids/iteration-0001.png", "grids/after.png"} <= names
    config = client.download_artifacts(found.info.run_id, "config.json", tmp_path)
    assert RunConfig.model_validate_json(Path(config).read_text()) == run.config
    with Image.open(client.download_artifacts(found.info.run_id, "grids/after.png", tmp_path)) as g:
        assert g.format == "PNG"
        assert min(g.size) > 2 * 32  # 2 prompts of 2 samples


def test_the_saved_adapters_are_the_average_in_the_stock_pipeline(
    run, mlflow_run, tiny_flux, tmp_path
):
    from diffusers import FluxPipeline

    from digen_core.checkpoints.tensors import last_state
    from digen_core.models.trainable import set_weights
    from support.tiny_policies import load, load_trainable

    client, found = mlflow_run
    state = last_state(run.dir)
    assert state.version == 2
    assert any((state.weights[name] != ema).any() for name, ema in state.ema.items())
    policy = load_trainable(tiny_flux, "float32", run.config.train.lora)
    set_weights(policy, state.ema)
    (registered,) = client.search_model_versions(f"run_id = '{found.info.run_id}'")
    assert registered.name == run.config.name
    kept = Path(urlparse(registered.source).path) / "weights"
    for folder in (kept, run.dir / "lora"):
        pipeline = FluxPipeline.from_pretrained(tiny_flux)
        pipeline.load_lora_weights(folder)
        stock = load(tiny_flux, "float32")
        stock.transformer = pipeline.transformer
        x = torch.randn(2, *policy.latent_shape, generator=torch.Generator().manual_seed(0))
        inputs = (x, torch.tensor([0.3, 0.9]), policy.encode(PROMPTS[:2]))
        assert torch.equal(stock.velocity(*inputs), policy.velocity(*inputs))


# --- Prefect ----------------------------------------------------------------------------------


def test_prefect_has_a_flow_run_for_each_part_and_a_task_run_for_each_task(run):
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    run_id = run.report.run_id
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=FlowRunFilter(name={"like_": run_id}))
        flow_runs = {flow_run.name: flow_run for flow_run in found}
        parts = ["prepare", "i0001", "i0002", "export"]
        parts += [f"evaluate-{tag}" for tag, _ in run.watch.evaluations]
        assert set(flow_runs) == {run_id, *(f"{run_id}-{part}" for part in parts)}
        assert all(flow_run.state.is_completed() for flow_run in found)
        ids = {"any_": [flow_runs[f"{run_id}-i0002"].id]}
        deadline = time.monotonic() + 30  # the server lags behind
        while True:
            task_runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=ids))
            names = {task_run.name for task_run in task_runs}
            done = all(r.state and r.state.is_completed() for r in task_runs)
            if (names >= TASKS and done) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    assert names >= TASKS | {"optimizer step v2", "push v2 to rollout-0", "push v2 to trainer-0"}
    assert len(task_runs) == len(names)
    assert done


# --- workers ----------------------------------------------------------------------------------


def test_workers_keep_the_state_between_flows_and_nothing_after_the_run(run):
    assert run.left == []
    phases = zip(run.watch.phases, run.watch.keys, strict=True)
    held = {phase: keys for phase, keys in phases if phase.startswith(EVALUATING)}
    assert len(held) == 3
    for phase, keys in held.items():
        # the state of the optimizer, and of it what is published
        assert len(keys) <= 2, f"{phase}: {keys}"
