"""Which Prefect server a command takes: the configured one, or its own; never one that it finds."""

import os
import re
import signal
import socket
import sys
from contextlib import nullcontext, suppress
from uuid import uuid4

import psutil
import pytest
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_HOME,
    temporary_settings,
)
from prefect.states import Paused

from deployments.operation import prefect_server
from deployments.operation.state import alive_after
from deployments.processes import prefect_server_of
from digen_core.errors import UserError
from support.mlflow_server import free_port
from support.prefect_settings import settings_with_server
from support.prefect_tables import IN_HOME
from support.waiting import comes_to

SILENT = ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # as commands set it


class NotStartedError(Exception):
    pass


@pytest.fixture
def started(monkeypatch):
    """Commands of the servers that are started, none of which is."""
    commands = []

    def popen(command, **options):
        commands.append((command, options["env"]))
        raise NotStartedError

    monkeypatch.setattr(prefect_server.subprocess, "Popen", popen)
    return commands


def configure(monkeypatch, url):
    settings = settings_with_server(url)
    monkeypatch.setattr(prefect_server, "get_current_settings", lambda: settings)


def test_a_server_that_is_found_is_left_alone(started, monkeypatch, tmp_path):
    """Whoever started it, a neighbour or another project: what it is told, its owner can read."""
    configure(monkeypatch, None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(prefect_server, "DEFAULT_PORT", port)
        with pytest.raises(NotStartedError), prefect_server.prefect_server(tmp_path):
            pass
    ((command, environment),) = started
    assert "deployments.operation.prefect_app" in command
    assert str(port) not in command
    assert "127.0.0.1" in command
    password = environment["PREFECT_SERVER_API_AUTH_STRING"].removeprefix("digen:")
    assert len(password) == 24
    assert not any(password in word for word in command)  # every user can list commands


def test_a_server_that_is_started_has_its_own_paths(started, monkeypatch, tmp_path):
    """Also where the variables of another one, behind a proxy, are set."""
    configure(monkeypatch, None)
    for name in ("PREFECT_SERVER_API_BASE_PATH", "PREFECT_SERVER_UI_SERVE_BASE"):
        monkeypatch.setenv(name, "/prefect")
    with pytest.raises(NotStartedError), prefect_server.prefect_server(tmp_path):
        pass
    ((_, environment),) = started
    assert environment["PREFECT_SERVER_API_BASE_PATH"] == "/api"
    assert environment["PREFECT_SERVER_UI_SERVE_BASE"] == "/"


def test_a_server_that_is_started_says_what_it_fails_of(started, monkeypatch, tmp_path):
    """Its log is its own, though the command that starts it is to be silent in the terminal."""
    configure(monkeypatch, None)
    monkeypatch.setenv(*SILENT)
    with pytest.raises(NotStartedError), prefect_server.prefect_server(tmp_path):
        pass
    ((_, environment),) = started
    assert environment[SILENT[0]] == "INFO"


def test_the_configured_server_is_taken(started, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(prefect_server, "check_server", lambda label, url: asked.append(url))
    configure(monkeypatch, "http://configured.example/api")
    with prefect_server.prefect_server(tmp_path) as api:
        assert api == prefect_server.PrefectApi("http://configured.example/api")
        assert api.page() == "http://configured.example"
    assert asked == ["http://configured.example/api"]
    assert not started


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is 'nonsense'; use http://HOST:PORT/api"),
        ("http://127.0.0.1:{port}/api", "is http://127.0.0.1:{port}/api, but no server answers"),
    ],
)
def test_a_configured_server_that_does_not_answer_is_refused(
    url, message, started, monkeypatch, tmp_path
):
    port = free_port()
    configure(monkeypatch, url.format(port=port))
    with (
        pytest.raises(UserError, match=re.escape(message.format(port=port))),
        prefect_server.prefect_server(tmp_path),
    ):
        pass
    assert not started
    assert not list(tmp_path.iterdir())


def test_a_run_that_no_server_knows_is_said(monkeypatch, tmp_path):
    configure(monkeypatch, None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    text = f"PREFECT_API_URL=http://127.0.0.1:{port}/api\nPREFECT_API_AUTH_STRING=digen:x\n"
    prefect_server.variables_of(tmp_path, port).write_text(text)  # of a command that was killed
    with pytest.raises(UserError, match="no Prefect server knows the run: neither the c"):
        prefect_server.set_state(tmp_path, str(uuid4()), Paused(), "running")


@pytest.mark.nightly
def test_a_server_whose_port_is_taken_meanwhile_has_another(monkeypatch, tmp_path, prefect_tables):
    """As by the server of a command that was started at the same time."""
    configure(monkeypatch, None)
    monkeypatch.setenv(*SILENT)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    prefect_tables.put(tmp_path / "prefect" / IN_HOME)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(prefect_server, "DEFAULT_PORT", port)
        looks = iter([True])  # it is free when it is looked at first
        is_free = prefect_server.is_free
        monkeypatch.setattr(
            prefect_server, "is_free", lambda asked: next(looks, False) or is_free(asked)
        )
        with prefect_server.prefect_server(tmp_path) as api:
            assert api.url != prefect_server.local_api(port)
            assert prefect_server.is_ours(api)
    assert "address already in use" in (tmp_path / "prefect-server.log").read_text()
    assert comes_to(lambda: prefect_server_of(os.getpid()) is None)


def test_a_server_that_cannot_start_is_not_tried_elsewhere(monkeypatch, tmp_path):
    configure(monkeypatch, None)
    tried = []

    def command(host, api_url, names=()):
        tried.append(api_url)
        return [sys.executable, "-c", "raise SystemExit('no disk')"]

    monkeypatch.setattr(prefect_server, "server_command", command)
    monkeypatch.setattr(prefect_server, "DEFAULT_PORT", prefect_server.any_free_port())
    with (
        pytest.raises(RuntimeError, match=r"did not start; see .*prefect-server\.log"),
        prefect_server.prefect_server(tmp_path),
    ):
        pass
    assert len(tried) == 1
    assert "no disk" in (tmp_path / "prefect-server.log").read_text()


def test_variables_that_cannot_be_read_are_those_of_no_server(monkeypatch, tmp_path):
    """Their command has just ended, or they are another user's in a folder that is shared."""
    configure(monkeypatch, None)
    prefect_server.variables_of(tmp_path, 1).symlink_to(tmp_path / "gone")
    prefect_server.variables_of(tmp_path, 2).write_text("PREFECT_API_URL=http://own/api\n")
    assert list(prefect_server._known_servers(tmp_path)) == [
        prefect_server.PrefectApi("http://own/api")
    ]


FROZEN = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"


def test_a_server_that_is_frozen_ends_with_its_command(monkeypatch, tmp_path):
    """What it is tied to cannot end it, and is killed: the server was left."""
    configure(monkeypatch, None)
    monkeypatch.setattr(prefect_server, "server_command", lambda *_: [sys.executable, "-c", FROZEN])
    monkeypatch.setattr(prefect_server, "END_SECONDS", 1.0)
    log = tmp_path / "prefect-server.log"
    monkeypatch.setattr(prefect_server, "_is_ours_soon", lambda *_: comes_to(log.read_text))
    with prefect_server._started(log):
        server = psutil.Process(int(log.read_text()))
        assert comes_to(lambda: server.status() == psutil.STATUS_STOPPED)
    try:
        assert not alive_after([server], 10)
    finally:
        with suppress(psutil.NoSuchProcess):
            server.kill()


def test_a_database_of_a_newer_prefect_is_told(monkeypatch, tmp_path):
    configure(monkeypatch, None)
    said = "alembic.util.exc.CommandError: Can't locate revision identified by '27d8f4e1a6c9'"
    command = [sys.executable, "-c", f"raise SystemExit({said!r})"]
    monkeypatch.setattr(prefect_server, "server_command", lambda *_: command)
    monkeypatch.setattr(prefect_server, "DEFAULT_PORT", prefect_server.any_free_port())
    with (
        pytest.raises(UserError, match=r"a newer Prefect, .*; set PREFECT_HOME to a folder"),
        prefect_server.prefect_server(tmp_path),
    ):
        pass


@pytest.mark.parametrize("is_own", [True, False])
def test_a_home_that_cannot_be_written_to_is_refused_where_the_database_is_in_it(is_own, tmp_path):
    home = tmp_path / "file" / ".prefect"
    home.parent.write_text("")
    database = PREFECT_API_DATABASE_CONNECTION_URL  # other tests have one
    elsewhere = {} if is_own else {database: "sqlite+aiosqlite:///x.db"}
    refused = pytest.raises(UserError, match=rf"PREFECT_HOME, .*, is {home}, but .*/file is a file")
    with (
        temporary_settings({PREFECT_HOME: home, **elsewhere}, restore_defaults=[database]),
        refused if is_own else nullcontext(),
    ):
        prefect_server.check_home()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.ci),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly),
    ],
)
def test_a_server_that_is_killed_or_frozen_is_started_anew(
    monkeypatch, tmp_path, number, prefect_tables
):
    configure(monkeypatch, None)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    prefect_tables.put(tmp_path / "prefect" / IN_HOME)
    monkeypatch.setattr(prefect_server, "MOST_SILENT_SECONDS", 10.0)
    with prefect_server.prefect_server(tmp_path) as api:
        before = prefect_server_of(os.getpid())
        os.kill(before, number)
        assert comes_to(lambda: prefect_server_of(os.getpid()) not in (None, before), 120)
        assert comes_to(lambda: prefect_server.is_ours(api), 120)
    assert comes_to(lambda: prefect_server_of(os.getpid()) is None)
