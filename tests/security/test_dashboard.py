"""Dask's dashboard answers browsers of this machine and its own pages, and no other page."""

import httpx
import pytest
from distributed import Client, SpecCluster
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from tasks.cluster.listening import own_scheduler
from tasks.cluster.same_origin import LOOPBACK_NAMES, may_come_in


@pytest.fixture(scope="module")
def dashboard():
    """Client of a scheduler, and host and port of its dashboard."""
    with (
        SpecCluster(scheduler=own_scheduler(tls=False), workers={}) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client, client.dashboard_link.split("/")[2]


REFUSED = {
    "another page": {"Origin": "http://evil.example"},
    "a page of this machine": {"Origin": "http://127.0.0.1:1"},
    "a sandboxed page": {"Origin": "null"},
    "a name that leads here": {"Host": "evil.example:80"},
    "a name that leads here, and its page": {"Host": "a.b", "Origin": "http://a.b"},
}


@pytest.mark.parametrize("path", ["status", "info/main/workers.html", "json/counts.json"])
def test_pages_are_shown_to_this_machine(dashboard, path):
    _, netloc = dashboard
    assert httpx.get(f"http://{netloc}/{path}", timeout=60).status_code == 200
    forwarded = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert httpx.get(f"http://{netloc}/{path}", headers=forwarded, timeout=60).status_code == 200


@pytest.mark.parametrize("case", REFUSED)
def test_pages_are_not_shown_to_others(dashboard, case):
    _, netloc = dashboard
    for path in ("status", "info/main/workers.html", "sitemap.json"):
        answer = httpx.get(f"http://{netloc}/{path}", headers=REFUSED[case])
        assert (answer.status_code, "Dask" in answer.text) == (403, False)


@pytest.mark.parametrize("case", ["own", *REFUSED])
def test_its_websocket_takes_its_own_pages_only(dashboard, case):
    client, netloc = dashboard
    headers = {"Origin": f"http://{netloc}"} | REFUSED.get(case, {})
    if case == "a name that leads here":
        del headers["Origin"]

    async def connect():
        # A page that is not shown /status can make a token of its own: they are not signed.
        token = "eyJzZXNzaW9uX2lkIjoiYSIsInNlc3Npb25fZXhwaXJ5Ijo5OTk5OTk5OTk5fQ"
        request = HTTPRequest(f"ws://{netloc}/status/ws", headers=headers)
        socket = await websocket_connect(request, subprotocols=["bokeh", token])
        return await socket.read_message()

    if case == "own":
        assert "ACK" in client.sync(connect)
    else:
        with pytest.raises(HTTPClientError, match="403"):
            client.sync(connect)


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("127.0.0.1:4200", None, True),
        ("LOCALHOST", "http://localhost", True),
        ("[::1]:80", "http://[::1]:80", True),
        ("127.0.0.1:4200", "https://127.0.0.1:4200", True),  # TLS that a proxy takes off
        (None, None, False),
        ("", None, False),
        ("127.0.0.1:4200", "", False),
        ("127.0.0.1:4200", "http://127.0.0.1:42000", False),
        ("127.0.0.1:4200", "http://127.0.0.1:4200.evil.example", False),
        ("127.0.0.1:4200", "http://127.0.0.1:4200@evil.example", False),
        ("127.0.0.1.evil.example", None, False),
        ("127.0.0.1:4200", "http://[::1", False),
        ("[::1", None, False),
    ],
)
def test_what_may_come_in(host, origin, expected):
    assert may_come_in(host, origin, LOOPBACK_NAMES) == expected
