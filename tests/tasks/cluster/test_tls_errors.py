"""An error of another connection is not taken for one of a sound connection."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from distributed import Security
from tornado.iostream import SSLIOStream

from tasks.cluster import listening  # noqa: F401 - it calls tell_apart
from tasks.cluster.tls_errors import tell_apart, tried_again


def sys_error() -> ssl.SSLError:
    """What Python 3.11 raises in place of an OSError."""
    error = ssl.SSLError(1, "[SYS] unknown error")
    error.library = "SYS"
    return error


def raising(*errors: BaseException):
    """Return a method that raises these, one in each call, and then returns how often it was."""
    left = list(errors)

    def read(stream, buffer):
        if left:
            raise left.pop(0)
        return len(buffer)

    return tried_again(read)


@pytest.fixture
def connected(tmp_path):
    """Return a function that returns both ends of a connection; nobody waits for data."""
    made = Security.temporary()
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    certificate.write_text(made.tls_ca_file)
    key.write_text(made.tls_client_key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asking = ssl.create_default_context(cafile=str(certificate))
    asking.check_hostname = False

    def connect() -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
        here, there = socket.socketpair()
        with ThreadPoolExecutor(1) as thread:
            peer = thread.submit(asking.wrap_socket, there)
            own = serving.wrap_socket(here, server_side=True)
        own.setblocking(False)
        return own, peer.result()

    return connect


def test_a_peer_that_is_gone_does_not_end_other_connections(connected):
    """Seen with OpenSSL 3.6: without the mend the sound one's pipe was broken, too."""
    (sound, peer), (gone, closed) = connected(), connected()
    closed.close()
    read = tried_again(lambda stream, count: stream.recv(count))
    for _ in range(2):
        with suppress(BrokenPipeError, ConnectionResetError):
            assert read(gone, 10) == b""
        with pytest.raises(ssl.SSLWantReadError):
            read(sound, 10)
    peer.sendall(b"four")
    assert read(sound, 10) == b"four"
    for one in (sound, peer, gone):
        one.close()


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), sys_error()], ids=str)
def test_what_failed_in_passing_is_tried_again(error):
    assert raising(error)(None, b"four") == 4


def test_what_fails_again_has_failed():
    with pytest.raises(ConnectionResetError):
        raising(BrokenPipeError(), ConnectionResetError())(None, b"four")


def test_what_tls_itself_refuses_is_not_tried_again():
    """Nor that there is nothing to read yet, which tornado has seen to before."""
    read = raising(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"))
    with pytest.raises(ssl.SSLError):
        read(None, b"four")
    assert read(None, b"four") == 4


def test_streams_are_wrapped_once():
    before = SSLIOStream.read_from_fd
    tell_apart()
    assert SSLIOStream.read_from_fd is before
    assert hasattr(before, "__wrapped__")
    assert not hasattr(before.__wrapped__, "__wrapped__")
