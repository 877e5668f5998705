"""A channel between two members of a gang: pickled messages over a connected stream socket."""

import hmac
import pickle
import secrets
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from struct import Struct
from threading import Lock
from time import monotonic
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

GONE_SECONDS: Final = 30
"""After which a host that does not answer any more is taken to be gone, as Dask does."""
_KEPT_ALIVE: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": (GONE_SECONDS - 10) // 5,
    "TCP_USER_TIMEOUT": 1000 * GONE_SECONDS,
}
_LENGTH: Final = Struct("!Q")
_CHUNK_BYTES: Final = 1 << 20  # for which TLS is held at once
_PROOF_BYTES: Final = 32


class LateError(Exception):
    """The other side has not answered in the time that it was given."""


class Channel:
    """One side of a connection, over which messages come whole and in order.

    One thread may receive while another one sends.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Take a socket over, with TLS or without."""
        connected.setblocking(False)
        self._socket = connected
        self._lock = Lock()  # TLS takes one call at a time, so none of them may wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self.close()

    def send(self, message: object) -> None:
        """Send a message.

        Raises:
            OSError: the other side is gone.
        """
        self.send_bytes(packed(message))

    def receive(self) -> Any:
        """Wait for a message; only what the other side is trusted with may have sent it.

        Raises:
            EOFError: the other side is gone.
            OSError: the connection is broken.
        """
        return pickle.loads(self.receive_bytes())

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as one message; raises as `send`."""
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        while rest:
            chunk = rest[:_CHUNK_BYTES]
            sent = self._when_ready(select.POLLOUT, None, partial(self._socket.send, chunk))
            rest = rest[sent:]

    def receive_bytes(self, most: int | None = None, seconds: float | None = None) -> bytes:
        """Wait for the bytes of a message; raises as `receive`.

        Args:
            most: bytes that it may have; who sends more does not belong here.
            seconds: until all of it is there; None: as long as it takes.

        Raises:
            LateError: it took longer; nothing can be received any more.
        """
        deadline = None if seconds is None else monotonic() + seconds
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if most is not None and size > most:
            raise ConnectionError(f"a message of {size} bytes came where {most} are the most")
        return bytes(self._exactly(size, deadline))

    def close(self) -> None:
        """End the connection: the other side, and whoever waits for it here, sees that at once."""
        with self._lock:
            with suppress(OSError):  # the other side was first
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _exactly(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            read = partial(self._socket.recv_into, rest[:_CHUNK_BYTES])
            received = self._when_ready(select.POLLIN, deadline, read)
            if not received:
                raise EOFError("the other side has ended the connection")
            rest = rest[received:]
        return data

    def _when_ready(self, event: int, deadline: float | None, attempt: Callable[[], T]) -> T:
        """Return what a call of the socket returns as soon as that need not wait.

        Args:
            event: for which the call waits without TLS.
            deadline: on the monotonic clock; None: there is none.
            attempt: makes the call.
        """
        while True:
            awaited = event
            try:
                with self._lock:
                    return attempt()
            except ssl.SSLWantReadError:
                awaited = select.POLLIN
            except ssl.SSLWantWriteError:
                awaited = select.POLLOUT
            except BlockingIOError:
                pass
            self._await(awaited, deadline)

    def _await(self, event: int, deadline: float | None) -> None:
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise EOFError("the connection was ended on this side")
        poll = select.poll()
        poll.register(descriptor, event)
        left = None if deadline is None else max(deadline - monotonic(), 0.0)
        if not poll.poll(None if left is None else 1000 * left) and left is not None:
            raise LateError("the other side does not answer")


def packed(message: object) -> bytes:
    """Return the bytes of a message, for those that go to several."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def prove(channel: Channel, key: bytes, *, leads: bool, seconds: float | None) -> None:
    """Prove to the other side that this one knows a key, and have it prove the same.

    Nothing that it sends is unpickled before.

    Args:
        channel: new.
        key: of both.
        leads: whether this side is the leader, and the other one a follower.
        seconds: that each answer may take; None: as long as it takes.

    Raises:
        AuthenticationError: the other side does not know the key.
        EOFError: it ended the connection, most likely as this side does not.
        OSError: the same, or the connection is broken.
        LateError: it took longer.
    """
    own = secrets.token_bytes(_PROOF_BYTES)
    channel.send_bytes(own)
    theirs = channel.receive_bytes(_PROOF_BYTES, seconds)
    channel.send_bytes(_proof(key, theirs, leads=leads))
    answer = channel.receive_bytes(_PROOF_BYTES, seconds)
    if not hmac.compare_digest(answer, _proof(key, own, leads=not leads)):
        raise AuthenticationError("the other side does not know the key of the gang")


def _proof(key: bytes, challenge: bytes, *, leads: bool) -> bytes:
    """Return the answer to a challenge; no side's is the other's, to whom it could be sent back."""
    side = b"leader" if leads else b"follower"
    return hmac.digest(key, side + challenge, "sha256")


def keep_alive(connected: socket.socket) -> None:
    """Have the system notice if the other host is gone without a word."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEPT_ALIVE.items():
        if hasattr(socket, name):  # not every system has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
