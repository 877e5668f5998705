"""Preloaded by Dask schedulers: their dashboard answers this machine's browsers and its own pages.

It has no password: it is for those who are on the machine. By default it would also answer any page
of any server that a browser here shows (bokeh's websockets), and any name that leads here.
"""

from typing import Any

from distributed import Scheduler
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.web import ErrorHandler

from tasks.cluster.same_origin import LOOPBACK_NAMES, may_come_in

PRELOAD = __name__


def dask_setup(scheduler: Scheduler) -> None:
    """Let the scheduler's HTTP server refuse what is not meant for it."""
    application = scheduler.http_application
    find_handler = application.find_handler

    def find_if_it_may(request: HTTPServerRequest, **options: Any) -> HTTPMessageDelegate:
        headers = request.headers
        if may_come_in(headers.get("Host"), headers.get("Origin"), LOOPBACK_NAMES):
            handler: HTTPMessageDelegate = find_handler(request, **options)
            return handler
        refusal = {"status_code": 403}
        return application.get_handler_delegate(request, ErrorHandler, refusal)

    setattr(application, "find_handler", find_if_it_may)  # noqa: B010 - mypy takes no method
