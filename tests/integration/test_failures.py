"""What a user sees when a run fails after it has started: the culprit, and all that was done."""

import json
import re
import shutil
from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from digen_core.eventlog.file import read_log
from digen_core.eventlog.replay import replay
from support.runs import Watch, merged, only_run, training_in_mlflow
from support.started import room_of, started_workers

pytestmark = pytest.mark.slow


def run(tree: dict, changes: dict) -> None:
    from flows.post_train import post_train

    post_train(RunConfig.model_validate(merged(tree, changes)))


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            "fails_later",
            r"score g0\d f0 on rollout-0 failed: .*reward 'smooth_rewards:fails_later' "
            r"raised ValueError: no such judge",
        ),
        (
            "not_a_number",
            r"score g0\d f0 on rollout-0 failed: .*reward "
            r"'smooth_rewards:not_a_number' returned nan for image 1 of 4",
        ),
    ],
)
def test_a_failing_reward_is_named(reward, message, tree, cluster_address, prefect_backend):
    from flows.runtime.fleet.task_set import TaskFailedError

    changes = {
        "rewards": {f"smooth_rewards:{reward}": 1.0},
        "cluster.scheduler_address": cluster_address(1, 1),
    }
    with pytest.raises(TaskFailedError, match=message) as failure:
        run(tree, changes)
    run_dir = only_run(tree)
    (note,) = failure.value.__notes__
    assert note == f"after iteration 0; resume it with: digen train --resume {run_dir}"
    log = read_log(run_dir)
    assert re.match(f"the run failed: {message}", log.why)
    assert replay(log).difference is None
    assert json.loads((run_dir / "evaluation" / "before.json").read_text())["version"] == 0
    assert training_in_mlflow(tree["tracking"]["runs_dir"]).info.status == "FAILED"


def test_what_a_worker_finds_wrong_with_the_config_is_said_as_such(
    tree, tiny_flux, tmp_path, cluster_address, prefect_backend
):
    from digen_core.errors import UserError

    model = tmp_path / "model"
    shutil.copytree(tiny_flux, model)
    file = model / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"invert_sigmas": True}))
    changes = {"model.path": str(model), "cluster.scheduler_address": cluster_address(1, 1)}
    runs_dir = Path(tree["tracking"]["runs_dir"])
    with pytest.raises(UserError) as error:
        run(tree, changes)
    assert str(error.value).startswith(f"the scheduler of model.path {model} gives 3 steps the")
    assert training_in_mlflow(runs_dir).info.status == "FAILED"
    assert not list(runs_dir.glob("*/config.json"))  # nothing stays of it


@pytest.mark.operation
def test_what_one_host_of_a_gang_finds_wrong_is_said_and_the_gang_is_not_lost(
    tree, tiny_flux, tmp_path, prefect_backend, monkeypatch
):
    """The other's copy of the model is whole. That the member ends is not what is told."""
    from digen_core.errors import UserError
    from flows.runtime.observers import watching

    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        shutil.copytree(tiny_flux, folder / "model")
    for file in (there / "model" / "transformer").iterdir():
        file.unlink()
    monkeypatch.chdir(here)
    asked = room_of("127.0.0.1", "127.0.0.2")
    watch = Watch()
    with started_workers(*asked, folders=[here, there, here]) as (address, _), watching(watch):
        changes = {"model.path": "model", "cluster.scheduler_address": address}
        with pytest.raises(UserError) as error:
            run(tree, {**changes, "parallel.stages": 2, "schedule.layout": "disaggregated"})
    assert str(error.value).startswith("model.path model cannot be loaded: ")
    assert str(error.value).endswith(" (on member 1 of the gang)")
    assert not watch.warnings


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("reward", "where"),
    [
        ({"on_failure": "fail"}, {}),
        ({"on_failure": "fail", "pool": "judges"}, {"cluster.reward_workers": {"judges": 1}}),
    ],
)
def test_a_class_that_is_broken_is_told_before_anything_is_generated(
    reward, where, tree, prefect_backend
):
    from digen_core.errors import UserError

    changes = {"rewards": {"smooth_rewards:OneValue": reward}, **where}
    with pytest.raises(UserError) as error:
        run(tree, changes)
    assert str(error.value) == (
        "reward 'smooth_rewards:OneValue' returned shape (1,) for 2 images; it was tried on two "
        "grey images, 32 x 32 for 'a red circle'"
    )
    assert not list(Path(tree["tracking"]["runs_dir"]).glob("*/config.json"))


def test_on_a_running_cluster_the_workers_try_functions_too(
    tree, cluster_address, prefect_backend, monkeypatch
):
    from digen_core.errors import UserError

    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster_address(1, 1))  # workers do not know it
    with pytest.raises(UserError, match="lamp is broken; it was tried on two grey images"):
        run(tree, {"rewards": {"smooth_rewards:broken": 1.0}})


@pytest.mark.operation
def test_a_lost_worker_is_named(tree, prefect_backend):
    from tasks.cluster.calls import WorkerLostError

    with pytest.raises(WorkerLostError, match=r"worker rollout-0 \(tls://.*\) was lost"):
        run(tree, {"rewards": {"smooth_rewards:kills_its_worker": 1.0}})
    assert training_in_mlflow(tree["tracking"]["runs_dir"]).info.status == "FAILED"


def test_a_cluster_without_trainers_is_refused(tree, prefect_backend):
    from digen_core.config.schedule import ClusterConfig
    from digen_core.control.protocol import Device
    from digen_core.errors import UserError
    from tasks.cluster.cluster import run_cluster

    only_rollout = [Device("rollout-0", frozenset({"rollout"}))]
    with (
        run_cluster(ClusterConfig(), only_rollout) as address,
        pytest.raises(UserError, match="no worker of the cluster has the role 'trainer'"),
    ):
        run(tree, {"cluster.scheduler_address": address})
    assert not Path(tree["tracking"]["runs_dir"]).exists()
