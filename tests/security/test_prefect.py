"""The Prefect server that digen starts: attacks by other pages, other names and other users."""

import asyncio
import json
import stat
from types import SimpleNamespace

import httpx
import psutil
import pytest
import websockets
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_HOME, get_current_settings, temporary_settings
from prefect.states import Paused, Running

from deployments.operation import cancelling, prefect_server, sign_in
from deployments.operation.prefect_server import set_state, variables_of
from deployments.operation.registration import POOL, _make_queue
from digen_core.checkpoints.manifest import LINEAGE_OF_RUN, Lineage
from digen_core.checkpoints.run_state import Holder
from support.prefect_access import headers_of
from support.prefect_settings import settings_with_server
from support.prefect_tables import IN_HOME
from support.sockets import address_of, documented, listening

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory, prefect_tables):
    """The server of a command: its address, the folder of runs, and that of its database."""
    folder, home = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("prefect")
    prefect_tables.put(home / IN_HOME)
    with pytest.MonkeyPatch.context() as patch, temporary_settings({PREFECT_HOME: str(home)}):
        patch.setenv("PREFECT_HOME", str(home))
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setattr(prefect_server, "DEFAULT_PORT", prefect_server.any_free_port())
        unconfigured = settings_with_server(None)
        patch.setattr(prefect_server, "get_current_settings", lambda: unconfigured)
        before = set(listening([psutil.Process()]))
        with prefect_server.prefect_server(folder) as api:
            patch.setattr(prefect_server, "get_current_settings", get_current_settings)
            yield SimpleNamespace(api=api, runs=folder, home=home, before=before)


@pytest.fixture(scope="module")
def deployment(server):
    """Id of a deployment in the process pool, which runs what its runs say."""

    async def create():
        await _make_queue()
        async with get_client() as client:
            flow_id = await client.create_flow_from_name("post-train")
            found = await client.create_deployment(flow_id, "shapes", work_pool_name=POOL)
        return str(found)

    return asyncio.run(create())


def attack(server, deployment: str, headers: dict[str, str]) -> int:
    """Start a command on this machine, as a page can without asking: no type, so no preflight."""
    job = {"command": "touch /tmp/owned"}
    content = json.dumps({"job_variables": job, "state": {"type": "SCHEDULED"}}).encode()
    url = f"{server.api.url}/deployments/{deployment}/create_flow_run"
    return httpx.post(url, content=content, headers=headers, timeout=60).status_code


ATTACKS = {
    "another page": ({"Origin": "http://evil.example"}, 403),
    "a page of another server of this machine": ({"Origin": "http://127.0.0.1:1"}, 403),
    "a sandboxed page": ({"Origin": "null"}, 403),
    "a name that leads here": ({"Host": "evil.example:4200"}, 403),
    "a page of a name that leads here": (
        {"Host": "evil.example:4200", "Origin": "http://evil.example:4200"},
        403,
    ),
    "another user": ({}, (401, 403)),
}


@pytest.mark.ci_but_one
@pytest.mark.parametrize("knows_password", [False, True])
@pytest.mark.parametrize("case", ATTACKS)
def test_nobody_else_starts_a_run(case, knows_password, server, deployment):
    headers, status = ATTACKS[case]
    if knows_password:  # as if the browser had sent it by itself
        headers = headers_of(server.api.url, server.api.auth) | headers
    found = attack(server, deployment, headers)
    if case == "another user" and knows_password:
        assert found == 201  # then it is no attack: so the others would have succeeded, too
    else:
        assert found in (status if isinstance(status, tuple) else (status,))


def test_a_password_alone_changes_nothing(server, deployment):
    """Prefect's CSRF token is asked for."""
    headers = {"Authorization": headers_of(server.api.url, server.api.auth)["Authorization"]}
    assert attack(server, deployment, headers) == 403
    read = httpx.get(f"{server.api.url}/deployments/{deployment}", headers=headers)
    assert read.status_code == 200


@pytest.mark.parametrize("path", ["admin/settings", "flow_runs/filter", "events/filter", "docs"])
def test_nothing_is_read_without_the_password(path, server):
    for method in ("GET", "POST"):
        answer = httpx.request(method, f"{server.api.url}/{path}")
        assert answer.status_code in (401, 403)
    assert httpx.get(f"{server.api.url}/health").status_code == 200


@pytest.mark.parametrize("case", ["another page", "a name that leads here", "another user", "own"])
@pytest.mark.parametrize(
    "path", ["events/in", "events/out", "logs/out", "work_pools/digen/workers"]
)
def test_websockets_are_closed_to_others(case, path, server):
    """No preflight protects them; by /events/in a page could trigger automations."""
    tail = "/connect" if path.endswith("workers") else ""
    address = server.api.url.replace("http", "ws") + f"/{path}{tail}"
    headers = {} if case == "own" else ATTACKS[case][0]
    password = server.api.auth if case == "own" else "digen:guess"

    async def connect() -> dict:
        async with websockets.connect(
            address, subprotocols=["prefect"], additional_headers=headers
        ) as socket:
            await socket.send(json.dumps({"type": "auth", "token": password}))
            return json.loads(await socket.recv())

    if case == "own":
        assert asyncio.run(connect()) == {"type": "auth_success"}
        return
    refused = websockets.InvalidStatus if headers else websockets.ConnectionClosedError
    with pytest.raises(refused):
        asyncio.run(connect())


def test_a_link_signs_in_once(server, monkeypatch):
    link = server.api.page()
    first, second = httpx.get(link), httpx.get(link)
    encoded = headers_of(server.api.url, server.api.auth)["Authorization"].removeprefix("Basic ")
    assert (first.status_code, second.status_code) == (200, 403)
    assert f'localStorage.setItem("prefect-password", "{encoded}")' in first.text
    assert first.headers["Cache-Control"] == "no-store"
    assert encoded not in second.text
    password = server.api.auth.partition(":")[2]
    assert password not in link
    assert encoded not in link
    assert httpx.get(server.api.page(), headers={"Host": "evil.example"}).status_code == 403

    for wrong in (link[:-1], link.replace("code=", "code=f"), link.partition("?")[0], f"{link}é"):
        assert httpx.get(wrong).status_code == 403
    assert httpx.get(sign_in.link_to(server.api.url, "digen:guess")).status_code == 403
    monkeypatch.setattr(sign_in.time, "time", lambda now=sign_in.time.time: now() - 700)
    old = server.api.page()
    monkeypatch.undo()
    assert httpx.get(old).status_code == 403
    assert httpx.get(server.api.page()).status_code == 200


def test_pages_ask_and_show_nothing_of_others(server):
    policy = httpx.get(server.api.url.removesuffix("api")).headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


def test_it_is_on_this_machine_only_and_the_password_in_one_file(server):
    address = address_of(server.api.url)
    assert set(listening([psutil.Process()])) - server.before == {address}
    assert address[0] == documented("digen train")["Prefect server"]

    port = address[1]
    file = variables_of(server.runs, port)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"PREFECT_API_AUTH_STRING={server.api.auth}\n" in file.read_text()
    password = server.api.auth.partition(":")[2].encode()
    kept = [p for folder in (server.runs, server.home) for p in folder.rglob("*") if p.is_file()]
    assert any(path.suffix == ".db" for path in kept)
    assert [path for path in kept if password in path.read_bytes()] == [file]


@flow
def nothing():
    pass


def test_a_run_is_paused_and_cancelled_by_the_folders_variables(server, monkeypatch):
    async def running() -> str:
        async with get_client() as client:
            run = await client.create_flow_run(nothing)
            await client.set_flow_run_state(run.id, Running(), force=True)
            return str(run.id)

    async def state_of(run: str) -> str:
        async with get_client() as client:
            return (await client.read_flow_run(run)).state.type.value

    run = asyncio.run(running())
    unconfigured = settings_with_server(None)
    monkeypatch.setattr(prefect_server, "get_current_settings", lambda: unconfigured)
    set_state(server.runs, run, Paused(), "running")
    assert asyncio.run(state_of(run)) == "PAUSED"
    set_state(server.runs, run, Running(), "paused")
    assert asyncio.run(state_of(run)) == "RUNNING"

    run_dir = server.runs / "shapes-1"  # trained on another machine, which no signal reaches
    lineage = Lineage(
        run_id="shapes-1", mlflow_run_id="", flow_run_ids=(run,), prompts_hash="",
        evaluation_prompts_hash="",
    )  # fmt: skip
    (run_dir / LINEAGE_OF_RUN).parent.mkdir(parents=True)
    (run_dir / LINEAGE_OF_RUN).write_text(lineage.model_dump_json())
    held = iter([Holder(1, "elsewhere"), None])
    monkeypatch.setattr(cancelling, "holder_of", lambda run_dir: next(held))
    monkeypatch.setattr(cancelling, "state_of", lambda run_dir: "ended")
    assert cancelling.cancel_run(run_dir) == "ended"
    assert asyncio.run(state_of(run)) == "CANCELLING"


def test_another_server_on_the_port_is_not_taken_for_ours(server):
    assert prefect_server.is_ours(server.api)
    other = prefect_server.PrefectApi(server.api.url, "digen:another")
    assert prefect_server.is_healthy(other.url)
    assert not prefect_server.is_ours(other)
