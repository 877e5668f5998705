"""What the servers that digen up starts are told of who may come in."""

import pytest
from mlflow.server.auth.config import read_auth_config

from deployments.cli import run
from deployments.operation.access import FOLDER, MLFLOW_AUTH, mlflow_environment


def test_mlflow_reads_what_it_is_told_in_any_folder(tmp_path, monkeypatch):
    folder = tmp_path / "100% of (my) runs"
    (folder / FOLDER).mkdir(parents=True)
    monkeypatch.chdir(folder)
    environment = mlflow_environment({"MLFLOW_TRACKING_PASSWORD": "secret"})
    assert environment["MLFLOW_AUTH_CONFIG_PATH"] == str(folder / MLFLOW_AUTH)
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", environment["MLFLOW_AUTH_CONFIG_PATH"])
    found = read_auth_config()
    assert found.database_uri == f"sqlite:///{folder / FOLDER}/mlflow-users.db"
    assert (found.admin_username, found.admin_password) == ("digen", "secret")


@pytest.mark.parametrize("name", ["what?", "a%20b"])
def test_in_a_folder_that_no_address_of_a_file_can_name_nothing_is_started(
    name, tmp_path, monkeypatch, capsys
):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    for variable in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    assert run(["up", "--no-workers"]) == 2
    assert f"database cannot be in {tmp_path / name}/runs, as ? and %" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / name / FOLDER).iterdir()] == ["lock"]
    assert [path.name for path in tmp_path.iterdir()] == [name]
