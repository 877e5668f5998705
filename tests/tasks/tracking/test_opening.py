"""The opening of runs in MLflow: several at once, in a folder that has no database yet."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import Mock

import pytest

from digen_core.config.run import RunConfig


def opened(runs_dir: str, name: str, barrier) -> str:
    """Open a run when all others are there, too; return its id."""
    from tasks.tracking.opening import begin  # MLflow takes a while to import

    config = RunConfig.model_validate({"name": name, "tracking": {"runs_dir": runs_dir}})
    barrier.wait(120)
    _, spool = begin(config, name, Path(runs_dir) / name, None)
    return spool.run.mlflow_run_id


@pytest.mark.nightly
def test_runs_that_are_started_at_once_share_a_new_database(tmp_path):
    from mlflow import MlflowClient

    from tasks.tracking.server import tracking_uri

    names, context = ["a", "b"], get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool, context.Manager() as manager:
        barrier = manager.Barrier(2)
        made = [pool.submit(opened, str(tmp_path), name, barrier) for name in names]
        ids = [each.result(180) for each in made]
    config = RunConfig.model_validate({"tracking": {"runs_dir": str(tmp_path)}})
    client = MlflowClient(tracking_uri(config))
    assert [client.get_run(each).info.run_name for each in ids] == names
    assert len({client.get_run(each).info.experiment_id for each in ids}) == 1


def test_the_folder_of_a_database_is_made_or_that_it_cannot_be_is_told(tmp_path):
    from digen_core.errors import UserError
    from tasks.tracking.server import alone_in

    with alone_in(f"sqlite:///{tmp_path}/new/one/mlflow.db"):
        assert (tmp_path / "new" / "one").is_dir()
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"file/mlflow\.db cannot be made: .*; use another address"),
        alone_in(f"sqlite:///{tmp_path}/file/mlflow.db"),
    ):
        pass
    with alone_in("http://127.0.0.1:9"):
        pass


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("No username set")])
def test_a_user_without_a_name_is_a_number(error, tmp_path, monkeypatch):
    from tasks.tracking import opening

    monkeypatch.setattr(opening, "getuser", Mock(side_effect=error))
    config = RunConfig.model_validate({"tracking": {"runs_dir": str(tmp_path)}})
    client, spool = opening.begin(config, "a", tmp_path / "a", None)
    assert client.get_run(spool.run.mlflow_run_id).data.tags["mlflow.user"] == str(os.getuid())


def test_a_run_goes_on_in_the_file_beside_it_wherever_digen_is_called(tmp_path, monkeypatch):
    from tasks.tracking import opening

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _, begun = opening.begin(RunConfig(), "a", tmp_path / "runs" / "a", None)
    monkeypatch.chdir(elsewhere)
    _, found = opening.go_on(RunConfig(), tmp_path / "runs" / "a")
    assert found.run == begun.run
    assert not list(elsewhere.iterdir())


def test_mlflow_prints_no_addresses_between_the_lines_of_a_run():
    """As it does at the end of each run and evaluation, where a server tracks them."""
    from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT

    import tasks.tracking  # noqa: F401

    assert MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.get()
