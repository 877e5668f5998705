"""MLflow's server as digen up starts it: other pages and other names are not answered."""

import os
import subprocess
import time

import httpx
import psutil
import pytest

from deployments.operation.prefect_server import any_free_port
from deployments.operation.services import MLFLOW, answers, commands_of, new_addresses
from deployments.operation.state import Options
from support.sockets import address_of, documented, listening

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its address."""
    folder = tmp_path_factory.mktemp("project")
    options = Options(
        cluster="2-cores", workers=False, host="127.0.0.1", tls=True, prefect_auth=True,
        mlflow_auth=False, names=("mlflow.example.org",), deployments="x",
        ports=(1, any_free_port(), 2, 3),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "runs").mkdir()
        addresses = new_addresses(options, {})
        command, environment = commands_of(options, addresses, {})[MLFLOW]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while not answers(f"{addresses[MLFLOW]}/health"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        sockets = set(listening([psutil.Process(process.pid)]))
        assert sockets == {address_of(addresses[MLFLOW])}
        yield addresses[MLFLOW]
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.terminate()
        process.terminate()
        process.wait(30)


def create(server: str, **headers: str) -> int:
    """Make an experiment."""
    url, name = f"{server}/api/2.0/mlflow/experiments/create", f"e-{time.time_ns()}"
    return httpx.post(url, json={"name": name}, headers=headers, timeout=60).status_code


def search(server: str, **headers: str) -> int:
    """Read what experiments there are."""
    url = f"{server}/api/2.0/mlflow/experiments/search?max_results=9"
    return httpx.get(url, headers=headers, timeout=60).status_code


REBOUND = ["evil.example", "10.evil.example:5000", "192.168.evil.example", "127.0.0.1.evil.example"]


@pytest.mark.parametrize("host", REBOUND)
def test_names_that_lead_here_are_not_answered(server, host):
    assert search(server, Host=host) == 403
    assert create(server, Host=host, Origin=f"http://{host}") == 403


def test_other_pages_change_nothing(server):
    assert create(server, Origin="http://evil.example") == 403
    assert create(server, Origin="null") == 403


def test_programs_and_its_own_pages_are_answered(server):
    assert (create(server), search(server)) == (200, 200)
    netloc = server.removeprefix("http://")
    assert create(server, Origin=server, Host=netloc) == 200
    forwarded = "localhost:9999"
    assert create(server, Host=forwarded, Origin=f"http://{forwarded}") == 200
    proxied = "mlflow.example.org"
    assert create(server, Host=proxied, Origin=f"https://{proxied}") == 200


def test_it_listens_as_documented(server):
    assert address_of(server)[0] == documented("digen up")["MLflow server"]
