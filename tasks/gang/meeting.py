"""How a leader meets a follower: over a Unix socket on one host, else over TCP.

A member listens where its worker does, with the same TLS: where a worker may not listen without it
(`tasks.cluster.listening`), a member does not either.
"""

import shutil
import socket
import ssl
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Final, Self

from distributed import Worker
from distributed.comm import get_address_host, get_address_host_port
from distributed.security import Security

from tasks.cluster.start_method import folder_of_sockets
from tasks.gang.channel import Channel, LateError, keep_alive, prove

PROOF_SECONDS: Final = 10.0
"""How long somebody who calls may take for each step until it is known who that is."""
CALL_SECONDS: Final = 60.0
"""How long it may take to reach the host of a follower."""
UNIX: Final = "unix://"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member is, as its Dask worker listens."""

    host: str
    """By which others reach it."""
    bound: str
    """Address at which it listens."""
    security: Security | None
    """The keys of the cluster; None: it has no TLS."""
    folder: Path
    """Of its worker: nobody else can enter, and Dask removes it, also of one that was killed."""

    @classmethod
    def of(cls, worker: Worker) -> Self:
        """Return the place of a worker of this process."""
        address = worker.contact_address or worker.address
        host = get_address_host(address)
        security = worker.security if address.startswith("tls://") else None
        bound, folder = get_address_host(worker.listen_address), Path(worker.local_directory)
        return cls(host, bound, security, folder)

    @property
    def scheme(self) -> str:
        """Begins the addresses at which it listens."""
        return "tls://" if self.security else "tcp://"

    def listener(self) -> socket.socket:
        """Return a socket that listens on a free port."""
        family = socket.AF_INET6 if ":" in self.bound else socket.AF_INET
        return socket.create_server((self.bound, 0), family=family)

    def context(self, *, listens: bool) -> ssl.SSLContext | None:
        """Return the TLS of a side: each takes only who has a key of the cluster; None: none."""
        if self.security is None:
            return None
        own = self.security
        args = own.get_listen_args("worker") if listens else own.get_connection_args("worker")
        found: ssl.SSLContext | None = args["ssl_context"]
        if found is None:
            raise ConnectionError("the worker's cluster has TLS, but it has no certificate itself")
        return found


class Awaited:
    """A leader that a follower waits for, on a socket that is there for no longer than that."""

    def __init__(self, place: Place, leader: str, key: bytes) -> None:
        """Begin to listen.

        Args:
            place: of the follower.
            leader: host of the leader.
            key: that it has to prove to know.
        """
        self._key = key
        self._is_over = False
        self._folder: Path | None = None
        self._context: ssl.SSLContext | None = None
        if leader == place.host:
            self._socket, path = _near_listener(place.folder)
            self._folder = path.parent
            self.address = f"{UNIX}{path}"
        else:
            self._context = place.context(listens=True)
            self._socket = place.listener()
            port = self._socket.getsockname()[1]
            self.address = f"{place.scheme}{_bracketed(place.host)}:{port}"

    def meet(self) -> Channel | None:
        """Wait for the leader to call, who is the first that knows the key; None: it was stopped.

        Then nobody else can call any more.
        """
        try:
            while not self._is_over:
                caller, _ = self._socket.accept()
                # Somebody else, or nobody any more: the leader is still awaited.
                with suppress(OSError, EOFError, AuthenticationError, LateError):
                    return _proven(caller, self._key, self._context, leads=False)
            return None
        finally:
            self._socket.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Wait no more; a leader that has called is not concerned."""
        self._is_over = True
        with suppress(OSError):  # to close the socket would not wake `accept`
            _connected(self.address).close()


def _near_listener(folder: Path) -> tuple[socket.socket, Path]:
    """Return a Unix socket that listens in a new folder that nobody else can enter, and its path.

    Where the worker's folder takes none, as its path is too long or it is on a disk that has no
    sockets, it is among temporary files, where it stays if this process is killed meanwhile.
    """
    try:
        return _bound_in(folder)
    except OSError:
        return _bound_in(Path(folder_of_sockets()))


def _bound_in(folder: Path) -> tuple[socket.socket, Path]:
    path = Path(tempfile.mkdtemp(prefix="digen-gang-", dir=folder)) / "leader"
    found = socket.socket(socket.AF_UNIX)
    try:
        found.bind(str(path))
        found.listen()
    except OSError:
        found.close()
        shutil.rmtree(path.parent)
        raise
    return found, path


def call(place: Place, address: str, key: bytes) -> Channel:
    """Call a follower from its leader.

    Args:
        place: of the leader.
        address: of the follower, as `Awaited` has it.
        key: that the follower knows, too.

    Raises:
        OSError: it is gone, or does not answer.
        EOFError: the same.
        AuthenticationError: it is another one.
    """
    context = None if address.startswith(UNIX) else place.context(listens=False)
    return _proven(_connected(address), key, context, leads=True)


def _connected(address: str) -> socket.socket:
    if not address.startswith(UNIX):
        return socket.create_connection(get_address_host_port(address), CALL_SECONDS)
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.connect(address.removeprefix(UNIX))
    except OSError:
        connected.close()
        raise
    return connected


def _proven(
    connected: socket.socket, key: bytes, context: ssl.SSLContext | None, *, leads: bool
) -> Channel:
    """Return a channel to who has proven the key, under TLS if there is a context."""
    seconds = None if leads else PROOF_SECONDS  # the follower may have to end something before
    try:
        if connected.family != socket.AF_UNIX:
            keep_alive(connected)
        connected.settimeout(seconds)
        if context is not None:
            connected = context.wrap_socket(connected, server_side=not leads)
        channel = Channel(connected)
        prove(channel, key, leads=leads, seconds=seconds)
    except BaseException:
        connected.close()
        raise
    return channel


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
