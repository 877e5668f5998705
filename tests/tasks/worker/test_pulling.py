"""Pulls: member from member, whatever the sizes of the two devices; a source that fails is told."""

import os
import signal
import time

import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import own_rows
from digen_core.training.contents import differing
from digen_core.training.train_state import START
from digen_core.transport.fingerprint import total_of
from support import pull_functions as functions
from support.pull_source import Source, version_of
from tasks.cluster.cluster import run_cluster
from tasks.cluster.presence import present_workers
from tasks.gang.received import take_received
from tasks.worker import pulling
from tasks.worker.pulling import PullError, pull
from tasks.worker.shelf import AVERAGE, Piece, Shelf

RUN = "run"
SHAPES = [(), (1,), (7,), (2, 3), (5, 4), (64, 2), (3, 0), (0,)]


def weights_of(shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"p{index}": np.asarray(100 * rng.standard_normal(shape)).astype(dtype)
        for index, shape in enumerate(shapes)
    }


@pytest.mark.parametrize("given_by", [1, 2, 3, 4])
@pytest.mark.parametrize("taken_by", [1, 2, 3, 4])
@pytest.mark.parametrize("bucket", [8, 40, 1 << 24])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_members_of_any_two_gangs(given_by, taken_by, bucket, dtype, monkeypatch):
    shapes = SHAPES if given_by == taken_by == 1 else SHAPES[1:]
    weights = weights_of(shapes, dtype)
    source = Source(weights, given_by)
    source.serve(monkeypatch, bucket)
    take_received()
    fingerprints = dict.fromkeys(weights, 0)
    for rank in range(taken_by):
        gang = Gang(rank, taken_by)
        arrived = pull(RUN, source.pushed, source.addresses, gang)
        for name, value in weights.items():
            assert arrived.rows[name].dtype == dtype
            np.testing.assert_array_equal(arrived.rows[name], own_rows(value, gang))
            fingerprints[name] += arrived.fingerprints[name]
    totals = {name: total_of([found]) for name, found in fingerprints.items()}
    assert totals == {name: own.fingerprint for name, own in source.pushed.contents.items()}
    num_bytes = sum(own.num_bytes for own in take_received())
    assert num_bytes == sum(value.nbytes for value in weights.values())  # each row once
    assert source.most <= pulling.UNDER_WAY
    for asked in source.buckets:
        sizes = [
            source.shelves[asked.address].pieces(source.pushed.hash, [p]) for p in asked.pieces
        ]
        assert sum(own.nbytes for (own,) in sizes) <= bucket or len(asked.pieces) == 1
    if bucket == 1 << 24:
        assert len(source.buckets) <= given_by * taken_by


@settings(max_examples=60, deadline=None)
@given(
    given_by=st.integers(1, 5),
    taken_by=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 13), min_size=1, max_size=4),
    width=st.integers(1, 5),
    bucket=st.integers(1, 64),
)
def test_rows_arrive_bit_for_bit(given_by, taken_by, lengths, width, bucket):
    weights = weights_of([(length, width) for length in lengths])
    source = Source(weights, given_by)
    with pytest.MonkeyPatch.context() as patch:
        source.serve(patch, bucket)
        for rank in range(taken_by):
            rows = pull(RUN, source.pushed, source.addresses, Gang(rank, taken_by)).rows
            for name, value in weights.items():
                assert rows[name].tobytes() == own_rows(value, Gang(rank, taken_by)).tobytes()


def flipped(rows):
    rows[0, 0] = -rows[0, 0]


def swapped(rows):
    rows[:2] = rows[1::-1].copy()


def of_another_version(rows):
    rows += 1


@pytest.mark.parametrize("damage", [flipped, swapped, of_another_version])
@pytest.mark.parametrize("bucket", [8, 1 << 24])
def test_what_arrives_damaged_is_told(damage, bucket, monkeypatch):
    source = Source(weights_of([(4, 2), (6, 3)]), 2)
    source.serve(monkeypatch, bucket)
    contents = source.pushed.contents
    arrived = pull(RUN, source.pushed, source.addresses, ALONE)
    assert differing(contents, arrived.fingerprints, ALONE) == []
    damage(source.shelves["member-1"].rows(source.pushed.hash)["p1"])
    arrived = pull(RUN, source.pushed, source.addresses, ALONE)
    assert differing(contents, arrived.fingerprints, ALONE) == ["p1"]


def stepped(weights, seed=1):
    """The next version: bits of some numbers move by one, either way."""
    rng, found = np.random.default_rng(seed), {}
    for name, value in weights.items():
        words = value.reshape(-1).view(f"u{value.itemsize}")
        moved = words + rng.integers(-1, 2, words.size).astype(words.dtype)
        found[name] = moved.view(value.dtype).reshape(value.shape)
    return found


def rows_in(weights, gang):
    return {name: own_rows(value, gang) for name, value in weights.items()}


LARGE = [(64, 20), (33, 100), (5,), (3, 0)]


@pytest.mark.parametrize("given_by", [1, 2, 3])
@pytest.mark.parametrize("taken_by", [1, 2, 3])
@pytest.mark.parametrize("bucket", [1000, 1 << 24])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_of_a_version_that_both_hold_deltas_are_sent(
    given_by, taken_by, bucket, dtype, monkeypatch
):
    before = weights_of(LARGE, dtype)
    weights = stepped(before)
    source, base = Source(weights, given_by), version_of(before, 0).hash
    source.hold(0, before)
    source.serve(monkeypatch, bucket)
    take_received()
    fingerprints = dict.fromkeys(weights, 0)
    for rank in range(taken_by):
        gang = Gang(rank, taken_by)
        bases = {"newer": {}, base: rows_in(before, gang)}
        arrived = pull(RUN, source.pushed, source.addresses, gang, bases)
        for name, value in weights.items():
            assert arrived.rows[name].tobytes() == own_rows(value, gang).tobytes()
            fingerprints[name] += arrived.fingerprints[name]
    totals = {name: total_of([found]) for name, found in fingerprints.items()}
    assert totals == {name: own.fingerprint for name, own in source.pushed.contents.items()}
    num_bytes = sum(own.num_bytes for own in take_received())
    assert num_bytes == source.num_sent
    assert num_bytes < 0.5 * sum(value.nbytes for value in weights.values())


@pytest.mark.parametrize("lack", ["source", "one member", "receiver"])
def test_without_a_version_that_both_hold_all_is_sent(lack, monkeypatch):
    before = weights_of(LARGE, np.uint16)
    source, base = Source(stepped(before), 2), version_of(before, 0).hash
    if lack != "source":
        source.hold(0, before)
    if lack == "one member":
        source.shelves["member-1"].drop(0)
    bases = None if lack == "receiver" else {base: before}
    source.serve(monkeypatch)
    take_received()
    arrived = pull(RUN, source.pushed, source.addresses, ALONE, bases)
    assert differing(source.pushed.contents, arrived.fingerprints, ALONE) == []
    sent = {own.source: own.num_bytes for own in take_received()}
    dense = {
        address: sum(value.nbytes for value in shelf.rows(source.pushed.hash).values())
        for address, shelf in source.shelves.items()
    }
    assert (sent == dense) == (lack != "one member")
    assert sent["member-1"] == dense["member-1"]


def test_of_what_the_base_does_not_have_all_is_sent(monkeypatch):
    """A version between two updates has what generated beside it; the one before has not."""
    before = weights_of(LARGE, np.uint16)
    beside = {f"{START}{name}": value for name, value in before.items()}
    weights = {**stepped(before), **beside}
    source, base = Source(weights, 1), version_of(before, 0).hash
    source.hold(0, before)
    source.serve(monkeypatch)
    arrived = pull(RUN, source.pushed, source.addresses, ALONE, {base: before})
    assert differing(source.pushed.contents, arrived.fingerprints, ALONE) == []
    whole = sum(value.nbytes for value in before.values())
    assert whole < source.num_sent < 1.5 * whole


def test_a_base_that_is_let_go_of_midway_is_done_without(monkeypatch):
    before = weights_of(LARGE, np.uint16)
    source, base = Source(stepped(before), 1), version_of(before, 0).hash
    source.hold(0, before)
    asked = []

    def ask(*arguments):
        asked.append(arguments)
        if len(asked) == 3:
            source.shelves["member-0"].drop(0)
        return source.ask(*arguments)

    monkeypatch.setattr(pulling, "_ask", ask)
    monkeypatch.setattr(pulling, "BUCKET_BYTES", 1000)
    arrived = pull(RUN, source.pushed, source.addresses, ALONE, {base: before})
    assert differing(source.pushed.contents, arrived.fingerprints, ALONE) == []
    assert {answer.base for answer in source.answers} == {base, ""}


def cut_off(answer):
    return answer._replace(values=[answer.values[0][:-5], *answer.values[1:]])


def of_what_is_not_here(answer):
    return answer._replace(base="0123456789abcdef")


@pytest.mark.parametrize("damage", [cut_off, of_what_is_not_here])
def test_what_is_no_delta_is_told(damage, monkeypatch):
    before = weights_of(LARGE, np.uint16)
    source, base = Source(stepped(before), 1), version_of(before, 0).hash
    source.hold(0, before)
    source.change = damage
    source.serve(monkeypatch, 1000)
    with pytest.raises(PullError, match=r"^member-0 sent p0 damaged: "):
        pull(RUN, source.pushed, source.addresses, ALONE, {base: before})
    assert source.under_way == 0


def test_a_delta_of_other_rows_than_those_here_is_told(monkeypatch):
    before = weights_of(LARGE, np.uint16)
    source, base = Source(stepped(before), 1), version_of(before, 0).hash
    source.hold(0, before)
    source.serve(monkeypatch)
    held = {**before, "p0": before["p0"] + np.uint16(1)}
    arrived = pull(RUN, source.pushed, source.addresses, ALONE, {base: held})
    assert differing(source.pushed.contents, arrived.fingerprints, ALONE) == ["p0"]


def test_a_source_that_let_go_of_the_version_is_told(monkeypatch):
    source = Source(weights_of([(4, 2)]), 2)
    source.serve(monkeypatch)
    source.shelves["member-1"].drop(1)
    with pytest.raises(PullError, match=r"^member-1 does not hold it any more$"):
        pull(RUN, source.pushed, source.addresses, ALONE)
    assert source.under_way == 0


def test_nothing_is_pulled_outside_of_a_worker(monkeypatch):
    monkeypatch.setattr(pulling, "_worker", None)
    with pytest.raises(RuntimeError, match="nothing is pulled outside of a worker"):
        pull(RUN, version_of(weights_of([(4, 2)])), ["tcp://127.0.0.1:1"], ALONE)


def test_a_shelf_keeps_rows_while_a_label_names_them():
    shelf, rows = Shelf(), weights_of([(4, 2)])
    shelf.put(3, "abc", rows)
    shelf.put(AVERAGE, "abc", rows)
    shelf.drop(3)
    assert list(shelf) == [AVERAGE]
    (found,) = shelf.pieces("abc", [Piece("p0", 1, 3)])
    np.testing.assert_array_equal(found, rows["p0"][1:3])
    shelf.put(AVERAGE, "def", rows)
    assert shelf.rows("abc") is None
    assert shelf.pieces("abc", []) is None
    shelf.drop(7)  # it was never there
    assert shelf.rows("def") is rows


# --- real workers -----------------------------------------------------------------------------


class Workers:
    """Two workers."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def address(self, name: str) -> str:
        return next(w.address for w in present_workers(self.client).values() if w.name == name)

    def submit(self, name: str, function, *arguments):
        where = [self.address(name)]
        return self.client.submit(function, *arguments, workers=where, pure=False)


@pytest.fixture(scope="module")
def workers():
    devices = [Device(name, frozenset({"rollout", "trainer"})) for name in ("one", "two")]
    with run_cluster(ClusterConfig(tls=False), devices) as address, Client(address) as client:
        yield Workers(client)


@pytest.mark.slow
def test_a_version_is_pulled_while_its_source_works(workers):
    pushed = workers.submit("one", functions.shelve, 40).result()
    working = workers.submit("one", functions.busy, 20)
    address = workers.address("one")
    is_same, seconds, num_bytes = workers.submit("two", functions.pull, pushed, address).result()
    assert is_same
    assert num_bytes == 40_000_000 + 7 * 8
    assert seconds < 15, "the pull waited for the task"
    assert not working.done()
    working.cancel()


@pytest.mark.nightly
def test_a_source_that_is_killed_or_frozen_is_told(workers):
    pushed, address = workers.submit("one", functions.shelve, 40).result(), workers.address("one")
    workers.submit("one", functions.serve_slowly, 1.5).result()
    frozen = workers.submit("two", functions.pull, pushed, address, 0.5)
    with pytest.raises(PullError, match=r"does not answer \(TimeoutError\)"):
        frozen.result(timeout=20)
    pid = workers.submit("one", os.getpid).result()
    pulling_it = workers.submit("two", functions.pull, pushed, address)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PullError, match="does not answer"):
        pulling_it.result(timeout=20)
    assert workers.submit("two", os.getpid).result() != pid  # the receiver is as it was
