"""The environment of processes: nothing reports to its makers, and no proxy leads to oneself."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from digen_core import NO_TELEMETRY, prepare_environment

NOT_ASKED = {*NO_TELEMETRY, "CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_RUNNING_UNIT_TESTS"}
"""Variables for which there is no telemetry anyway."""


def run_with(home, code: str) -> str:
    """Run code in a process of a user who said nothing, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_ASKED}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=environment, text=True)


def test_onnx_runtime_gives_this_machine_no_number_and_gathers_nothing(tmp_path):
    run_with(tmp_path, "import digen_core, onnxruntime")
    assert not list(tmp_path.iterdir())


@pytest.mark.ci
@pytest.mark.parametrize(
    "module", ["deployments.cli", "flows.post_train", "tasks.tracking.tracker"]
)
def test_it_is_switched_off_before_anything_is_loaded_that_has_it(module, tmp_path):
    said = run_with(tmp_path, f"import sys, {module}; print(*sys.modules)").split()
    first = said.index("digen_core")
    assert not {"prefect", "mlflow", "huggingface_hub", "onnxruntime"} & {*said[:first]}


@pytest.mark.parametrize(
    ("lower", "upper", "hosts"),
    [
        (None, None, "127.0.0.1,localhost,::1"),
        (None, "10.0.0.0/8, localhost", "10.0.0.0/8,localhost,127.0.0.1,::1"),
        ("a.example", "b.example", "a.example,127.0.0.1,localhost,::1"),
        ("", "b.example", "b.example,127.0.0.1,localhost,::1"),
        (None, "*", "*"),
    ],
)
def test_this_machine_is_added_to_what_is_reached_without_a_proxy(lower, upper, hosts, monkeypatch):
    for name, value in (("no_proxy", lower), ("NO_PROXY", upper)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    for _ in range(2):  # a process, and one that it starts
        prepare_environment()
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == hosts


ASKED = """
import urllib.request, digen_core, httpx, requests
url = "http://127.0.0.1:{port}"
print(httpx.get(url).status_code, requests.get(url).status_code, urllib.request.urlopen(url).status)
"""


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_servers_of_this_machine_answer_where_the_network_has_a_proxy(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # which nobody listens on
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        said = run_with(tmp_path, ASKED.format(port=server.server_port))
        server.shutdown()
    assert said.split() == ["200"] * 3
