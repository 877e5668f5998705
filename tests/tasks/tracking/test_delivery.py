"""What a spool holds, as MLflow takes it."""

import pytest
from mlflow import MlflowClient

from tasks.tracking.delivery import Delivery
from tasks.tracking.spool import RunOfSpool, Spool


@pytest.fixture
def run(tmp_path):
    """A run of MLflow in a database of its own, and a client of that."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri)
    experiment_id = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    info = client.create_run(experiment_id).info
    return RunOfSpool(
        uri=uri, experiment_id=experiment_id, mlflow_run_id=info.run_id, name="r"
    ), client


def entry_of_model(folder, name):
    """Make a folder that is a model's, and return the entry that names it."""
    (folder / "model").mkdir()
    (folder / "model" / "MLmodel").write_text("")
    return {
        "key": "model 3",
        "kind": "model",
        "path": "model",
        "name": name,
        "model_type": "diffusers-lora",
        "tags": {"digen.policy_version": "3"},
        "step": 3,
    }


@pytest.mark.parametrize("name", ["flux-1.5", "bob's 100%", "plain"])
def test_a_model_of_any_name_is_registered_once(name, run, tmp_path):
    delivery = Delivery(run[1], Spool.create(tmp_path, run[0]))
    entry = entry_of_model(tmp_path, name)
    delivery.deliver([entry])
    delivery.deliver([entry])
    (version,) = run[1].search_model_versions(f"run_id = '{run[0].mlflow_run_id}'")
    assert (version.name, version.tags) == (name, entry["tags"])
    (model,) = run[1].search_logged_models([run[0].experiment_id])
    assert (model.name == name) == (name == "plain")


@pytest.mark.parametrize("arrives", [False, True])
def test_a_run_has_its_model_once_also_if_the_connection_broke(arrives, run, tmp_path, monkeypatch):
    delivery = Delivery(run[1], Spool.create(tmp_path, run[0]))
    entry = entry_of_model(tmp_path, "plain")
    tell = MlflowClient.log_outputs

    def breaking(*args):
        monkeypatch.undo()
        if arrives:
            tell(*args)
        raise ConnectionError

    monkeypatch.setattr(MlflowClient, "log_outputs", breaking)
    with pytest.raises(ConnectionError):
        delivery.deliver([entry])
    delivery.deliver([entry])
    (output,) = run[1].get_run(run[0].mlflow_run_id).outputs.model_outputs
    (model,) = run[1].search_logged_models([run[0].experiment_id])
    assert (output.model_id, output.step) == (model.model_id, 3)


def test_a_model_whose_folder_holds_a_later_one_is_left_out(run, tmp_path, caplog):
    """As of a run that ended while files could not be sent, and went on when they could.

    The weights of the later one would be registered as the earlier version.
    """
    delivery = Delivery(run[1], Spool.create(tmp_path, run[0]))
    entry = entry_of_model(tmp_path, "plain")
    later = {**entry, "key": "model 9", "tags": {"digen.policy_version": "9"}, "step": 9}
    spool = Spool.create(tmp_path, run[0])
    for own in (entry, later):
        spool.append(**own)
    delivery.deliver([entry])
    delivery.deliver([later])
    (version,) = run[1].search_model_versions(f"run_id = '{run[0].mlflow_run_id}'")
    assert version.tags == later["tags"]
    assert "model 3 of r is not told to MLflow" in caplog.text


def test_files_of_an_evaluation_that_are_a_later_one_s_by_now_are_left_out(run, tmp_path, caplog):
    """As of a run that ended, went on and ended again, and that MLflow is told of anew.

    The earlier evaluation would have the scores and pictures of the later one.
    """
    spool = Spool.create(tmp_path, run[0])
    delivery = Delivery(run[1], spool)
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "after.json").write_text("of version 9")
    of = {"kind": "file", "path": "evaluation/after.json", "folder": "evaluation"}
    for name, key in {"after": of["path"], "after-v9": f"{of['path']} of after-v9"}.items():
        spool.append(key, **of, evaluation=name, in_training=True)
    for entry in spool.read():
        delivery.deliver([entry])
    (nested,) = run[1].search_runs([run[0].experiment_id], "tags.`digen.evaluation` LIKE 'after%'")
    assert nested.info.run_name == "r-after-v9"
    for run_id in (nested.info.run_id, run[0].mlflow_run_id):
        (file,) = run[1].list_artifacts(run_id, "evaluation")
        assert file.path == "evaluation/after.json"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("evaluation/after.json of r is not told to MLflow: the run has gone on")
