"""Errors of other connections that TLS raises for a sound one, and the mend: it is tried again.

OpenSSL keeps the errors of a thread in a queue, from version 3.4 on also that a peer had closed a
connection; and CPython empties it neither when it raises that nor before it reads or writes next,
on whatever connection (python/cpython#148594). That one fails, too, and Dask takes its worker for
lost, or for not there when a run starts.
"""

import functools
import ssl
from collections.abc import Callable
from typing import Any, Final

from tornado.iostream import SSLIOStream

_CONTEXT: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname = False


def tell_apart() -> None:
    """Have connections of this process try again what fails as if their peers were gone."""
    for name in ("read_from_fd", "write_to_fd"):
        method = getattr(SSLIOStream, name)
        if not hasattr(method, "__wrapped__"):
            setattr(SSLIOStream, name, tried_again(method))


def tried_again(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is called again, once, if a system call seems to have failed.

    Nothing of it stays in the queue of errors.
    """

    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            if not _is_of_system(error):
                raise
        _clear_errors()
        try:
            return method(*arguments)
        except OSError as error:
            if _is_of_system(error):
                _clear_errors()
            raise

    return call


def _is_of_system(error: OSError) -> bool:
    """Say whether an error is of a system call; Python 3.11 has it as one of TLS."""
    return not isinstance(error, ssl.SSLError) or getattr(error, "library", None) == "SYS"


def _clear_errors() -> None:
    """Empty this thread's queue of errors, as CPython does for each new connection."""
    _CONTEXT.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
