"""The channel between two members: messages, who is let in, and the end of either side."""

import pickle
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import AuthenticationError
from pathlib import Path

import pytest
from distributed import Security

from tasks.gang.channel import Channel, LateError, packed, prove
from tasks.gang.meeting import Awaited, Place, call

KEY, WRONG = bytes(32), bytes([1]) * 32
HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def place(tmp_path):
    """Return a function: where a member is that listens on a host."""

    def found(host: str, security: Security | None = None, folder: Path = tmp_path) -> Place:
        return Place(host, host, security, folder)

    return found


@pytest.fixture(scope="module")
def keys() -> Security:
    """What the workers of one cluster have."""
    return Security.temporary()


@pytest.fixture(params=["one host", "two hosts", "two hosts with TLS"])
def ends(request, keys, place):
    """The leader's end of a channel, and the follower's."""
    security = keys if "TLS" in request.param else None
    follower = place(HERE if request.param == "one host" else THERE, security)
    awaited = Awaited(follower, HERE, KEY)
    with ThreadPoolExecutor() as pool:
        met = pool.submit(awaited.meet)
        leader = call(place(HERE, security), awaited.address, KEY)
        with leader, met.result(10) as other:
            yield leader, other


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_messages_come_as_they_were_sent_both_ways_at_once(ends, size):
    leader, follower = ends
    there, back = [{"a": bytes(size)}, None], [bytes([7]) * size, "b"]
    with ThreadPoolExecutor() as pool:
        received = pool.submit(lambda: [follower.receive() for _ in there])
        answered = pool.submit(lambda: [follower.send(message) for message in back])
        for message in there:
            leader.send(message)
        assert [leader.receive() for _ in back] == back
        assert received.result(10) == there
        answered.result(10)


def test_who_has_gone_is_noticed_by_who_waits(ends):
    leader, follower = ends
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(follower.receive)
        leader.close()
        with pytest.raises(EOFError):
            waiting.result(10)


def test_who_ends_a_channel_wakes_its_own_reader(ends):
    leader, _ = ends
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(leader.receive)
        leader.close()
        with pytest.raises((EOFError, OSError)):
            waiting.result(10)


def test_an_answer_that_is_late_is_no_answer(ends):
    with pytest.raises(LateError):
        ends[0].receive_bytes(seconds=0.01)


@pytest.fixture
def short_path():
    """A folder in which the path of a socket is not too long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("folder", ["worker", 100 * "w", "gone"])
def test_on_one_host_nothing_listens_on_a_network_and_nothing_is_left(
    place, short_path, folder, monkeypatch
):
    """The socket is where Dask removes it with its worker, if a socket can be there."""
    own, temporary = short_path / folder, short_path / "tmp"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for each in {own, temporary} - {short_path / "gone"}:
        each.mkdir()
    awaited = Awaited(place(HERE, folder=own), HERE, KEY)
    path = Path(awaited.address.removeprefix("unix://"))
    assert path.is_socket()
    assert path.parent.parent == (own if folder == "worker" else temporary)
    assert path.parent.stat().st_mode & 0o777 == 0o700, "only this user can enter"
    with ThreadPoolExecutor() as pool:
        met = pool.submit(awaited.meet)
        awaited.stop()
        assert met.result(10) is None
    assert [each for each in short_path.rglob("*") if each not in (own, temporary)] == []


def test_a_socket_is_where_its_path_is_short_enough(place, tmp_path, monkeypatch):
    """Neither the worker's folder nor that of temporary files takes one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / (100 * "t")))
    awaited = Awaited(place(HERE, folder=tmp_path / (100 * "w")), HERE, KEY)
    path = Path(awaited.address.removeprefix("unix://"))
    with ThreadPoolExecutor() as pool:
        met = pool.submit(awaited.meet)
        assert path.is_socket()
        awaited.stop()
        assert met.result(10) is None
    assert not path.parent.exists()


def test_on_another_host_it_listens_where_its_worker_does_until_the_leader_has_called(place):
    awaited = Awaited(place(THERE), HERE, KEY)
    scheme, host, port = awaited.address.replace("//", "").split(":")
    assert (scheme, host) == ("tcp", THERE)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, int(port)))
    with ThreadPoolExecutor() as pool:
        met = pool.submit(awaited.meet)
        with (
            call(place(HERE), awaited.address, KEY),
            met.result(10),
            pytest.raises(ConnectionRefusedError),
        ):
            socket.create_connection((THERE, int(port)))


class Bomb:
    """Its unpickling leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nobody_else_is_let_in_and_nothing_of_theirs_is_unpickled(place, tmp_path):
    """Each is turned away, and the leader is waited for as before."""
    awaited = Awaited(place(THERE), HERE, KEY)
    address = awaited.address.removeprefix("tcp://").split(":")
    bomb = packed(Bomb(tmp_path / "left"))
    with ThreadPoolExecutor() as pool:
        met = pool.submit(awaited.meet)
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            call(place(HERE), awaited.address, WRONG)
        for messages in ([bomb], [bomb[:32], bomb], [bytes(32), bytes(32), bomb], []):
            caller = socket.create_connection((address[0], int(address[1])))
            with Channel(caller) as stranger, suppress(OSError):  # not listened to for long
                for message in messages:
                    stranger.send_bytes(message)
        with call(place(HERE), awaited.address, KEY) as leader, met.result(10) as follower:
            leader.send("the first that counts")
            assert follower.receive() == "the first that counts"
    assert not (tmp_path / "left").exists()
    pickle.loads(bomb)
    assert (tmp_path / "left").exists(), "it is one"


def test_a_leader_is_told_of_a_follower_without_the_key(place):
    awaited = Awaited(place(THERE), HERE, WRONG)
    with ThreadPoolExecutor() as pool:
        pool.submit(awaited.meet)
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            call(place(HERE), awaited.address, KEY)
        awaited.stop()


def test_what_a_side_says_is_no_answer_for_it():
    """Who knows no key sends back what it is sent, as if it were its own."""
    here, there = socket.socketpair()
    with ThreadPoolExecutor() as pool, Channel(there) as mirror:
        proving = pool.submit(prove, Channel(here), KEY, leads=True, seconds=10)
        for _ in range(2):
            mirror.send_bytes(mirror.receive_bytes(seconds=10))
        with pytest.raises(AuthenticationError):
            proving.result(10)


@pytest.mark.parametrize("stranger", ["another cluster's", "none"])
def test_with_tls_nobody_comes_without_the_clusters_key(place, keys, stranger):
    """Not even who knows the gang's."""
    other = place(HERE, Security.temporary() if stranger != "none" else None)
    awaited = Awaited(place(THERE, keys), HERE, KEY)
    with ThreadPoolExecutor() as pool:
        met = pool.submit(awaited.meet)
        with pytest.raises((OSError, EOFError)):
            call(other, awaited.address, KEY)
        with call(place(HERE, keys), awaited.address, KEY), met.result(10):
            pass
