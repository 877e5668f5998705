"""The gate of HTTP servers: requests to a name of their own, and not by another's page.

Browsers send any page's requests to servers that listen on this machine or in its network. They
name the page in ``Origin`` (RFC 6454), save for reads that the page is not shown; and in ``Host``
(RFC 9110, 7.2) the name that was asked for, which DNS may have led here ("DNS rebinding").
"""

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def may_come_in(host: str | None, origin: str | None, names: Collection[str]) -> bool:
    """Say whether a server answers a request.

    Programs that are no browsers send no ``Origin``. Ports are not compared with the server's: ssh
    may forward another one.

    Args:
        host: the request's ``Host``.
        origin: its ``Origin``.
        names: of the server, in lower case.
    """
    if host is None or _name_in(host) not in names:
        return False
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def _name_in(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
