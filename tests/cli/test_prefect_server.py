"""Which Prefect server a command takes: never one that ends with another command."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from deployments import prefect_server


@pytest.fixture(params=[True, False], ids=["lasting", "of a command"])
def running(request):
    """A server's page of settings, as Prefect 3.8 has it."""
    triggers = {"enabled": request.param}
    body = json.dumps({"server": {"services": {"triggers": triggers}}}).encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield request.param, server.server_port
    server.shutdown()


def test_a_server_of_another_command_is_left_alone(running, monkeypatch, tmp_path):
    lasts, port = running
    started = []

    class NotStartedError(Exception):
        pass

    def popen(command, **options):
        started.append(command[-1])
        raise NotStartedError

    monkeypatch.setattr(prefect_server, "DEFAULT_PORT", port)
    monkeypatch.setattr(prefect_server, "get_current_settings", lambda: _Unconfigured)
    monkeypatch.setattr(prefect_server.subprocess, "Popen", popen)
    if lasts:
        with prefect_server.prefect_server(tmp_path) as url:
            assert url == f"http://127.0.0.1:{port}/api"
        return
    with pytest.raises(NotStartedError), prefect_server.prefect_server(tmp_path):
        pass
    assert started
    assert started != [str(port)]


class _Unconfigured:
    class api:  # noqa: N801
        url = None


def test_nothing_there_is_no_lasting_server():
    assert not prefect_server.is_lasting("http://127.0.0.1:9/api")
