"""What the servers that digen up starts are told of who may come in."""

from mlflow.server.auth.config import read_auth_config

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
