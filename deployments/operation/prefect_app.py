"""Prefect's server as digen starts it: it answers its own pages and programs with the password.

    PREFECT_SERVER_API_AUTH_STRING=user:password \
        python -m deployments.operation.prefect_app --host 127.0.0.1 --port 4200

By itself the server answers whatever page a browser here shows, and any name that leads here
(`tasks.cluster.same_origin`); and a process pool runs what it is told.
"""

import argparse
import ctypes
import os
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Any, Final

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from sqlalchemy import Dialect, Engine, event
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.operation.sign_in import PATH, SignIn
from tasks.cluster.same_origin import LOOPBACK_NAMES, may_come_in

NICENESS: Final = 5  # beside workers on one small machine it does with what they leave

ARENAS: Final = 1
"""Of malloc: all threads share the first. By itself each thread, as each of Prefect's connections
is, fills one of its own, up to eight for each core, and what is freed there is of use to no other:
after 200 iterations of 150 task runs 100 of 200 MB were free, with one arena 19 of 106."""
PAGE_BYTES: Final = 16 << 20
"""Memory of SQLite from which on it uses a page again that it has, rather than another one. Each of
Prefect's connections may keep 80 MB of pages, and there are five or more. To write task runs into a
database of 120 MB takes no more CPU with it than with 64 MB."""
STATEMENTS: Final = 16
"""That a connection keeps. By itself it keeps 128, and those by which many task runs are written at
once, one for each number of them, take 3 KB for each of them."""

_M_ARENA_MAX: Final = -8  # malloc.h of glibc
_REFUSAL: Final = (
    "This server answers requests to its own names and by its own pages. If it has another name, "
    "as behind a proxy: digen up --names NAME"
)
# By itself the pages tell amplitude.com what is done on them, and load pictures from anywhere.
_POLICY: Final = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"
)


class Gate:
    """What stands before an ASGI app: who may come in, and the page for signing in."""

    def __init__(self, app: ASGIApp, names: Collection[str], auth: str | None) -> None:
        """Stand before an app.

        Args:
            app: which answers what comes in.
            names: of the server, in lower case.
            auth: ``user:password`` of the app; None: it has none.
        """
        self._app, self._names = app, names
        self._sign_in = SignIn(auth) if auth else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the app answer."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not may_come_in(headers.get("host"), headers.get("origin"), self._names):
            await PlainTextResponse(_REFUSAL, 403)(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == PATH and self._sign_in:
            code = Request(scope).query_params.get("code", "")
            await self._sign_in.page(code)(scope, receive, send)
        else:
            await self._app(scope, receive, _with_policy(send))


def _with_policy(send: Send) -> Send:
    """Let pages show and ask nothing but this server, and no other page show them."""

    async def send_with_policy(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["Content-Security-Policy"] = _POLICY
        await send(message)

    return send_with_policy


def spare_memory() -> None:
    """Bound what malloc and SQLite keep, before there are threads.

    Without it the server grows by hundreds of MB in the first hours.
    """
    with suppress(AttributeError):  # another libc, which has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
    with closing(sqlite3.connect(":memory:")) as connection:  # it is a limit of the process
        connection.execute(f"PRAGMA soft_heap_limit = {PAGE_BYTES}")

    @event.listens_for(Engine, "do_connect")
    def connect(dialect: Dialect, _: object, __: object, options: dict[str, Any]) -> None:
        if dialect.name == "sqlite":
            options["cached_statements"] = STATEMENTS


def main() -> None:
    """Serve Prefect until the process is ended."""
    parser = argparse.ArgumentParser(prog="prefect_app")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", action="append", default=[], help="of the server; repeatable")
    options = parser.parse_args()
    os.nice(NICENESS)
    spare_memory()
    server = get_current_settings().server
    auth = server.api.auth_string
    names = LOOPBACK_NAMES.union(name.lower() for name in options.name)
    uvicorn.run(
        Gate(create_app(final=True), names, auth.get_secret_value() if auth else None),
        host=options.host,
        port=options.port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
