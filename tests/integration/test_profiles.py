"""Profiles of tasks: of iterations that were asked for, by each device, in folder and MLflow."""

import gzip
import json

import pytest

from digen_core.config.run import RunConfig
from support.layout_runs import Case
from support.runs import training_in_mlflow

pytestmark = pytest.mark.ci


def test_a_task_of_each_kind_is_kept_by_each_device(run_layout):
    from mlflow import MlflowClient

    case = Case("disaggregated", (2, 1), 2, 3)
    run = run_layout(case, **{"tracking.profile_iterations": [2]})
    (folder,) = (run.folder / "profiles").iterdir()
    assert folder.name == "iteration-0002"
    by_task = {}
    for path in folder.glob("*.json.gz"):
        device, task = path.name.removesuffix(".json.gz").rsplit("-", 1)
        by_task.setdefault(task, set()).add(device)
        names = {
            event.get("name")
            for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        }
        assert {"aten::addmm", "aten::scaled_dot_product_attention"} & names or task == "decode"
        assert any("backward" in str(name).lower() for name in names) == (task == "train")
        table = path.with_name(path.name.replace(".json.gz", ".txt")).read_text()
        assert "Self CPU" in table
    assert by_task["denoise"] == by_task["decode"] == {"worker-0", "worker-1"}
    assert by_task["train"] == {"worker-2"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    runs_dir = run.config.tracking.runs_dir
    found = training_in_mlflow(runs_dir)
    client = MlflowClient(f"sqlite:///{runs_dir}/mlflow.db")
    logged = client.list_artifacts(found.info.run_id, "profiles/iteration-0002")
    assert {own.path.rpartition("/")[2] for own in logged} == {
        path.name for path in folder.iterdir()
    }


def test_an_iteration_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="names 5, but the run ends after iteration 4"):
        RunConfig.model_validate({"num_iterations": 4, "tracking": {"profile_iterations": [2, 5]}})
