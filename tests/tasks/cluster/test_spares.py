"""Which spare has which place of a gang: by hand, and in random stories of workers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from digen_core.control.protocol import followers_of
from digen_core.errors import UserError
from support.coming_workers import Workers, coming_workers
from support.started import room_of, started_workers
from support.waiting import comes_to
from tasks.cluster.cluster import await_spares, devices_of
from tasks.cluster.leaving import leave
from tasks.cluster.presence import present_workers
from tasks.cluster.spares import (
    Absence,
    Declared,
    absences,
    assign,
    matched,
    may_take,
    take_out,
)

PATIENCE = 30.0


def leader(name="room", size=3, start="nanny-0", **known):
    return Declared(name, start, size, **known)


def member(name):
    return Declared(name, f"nanny of {name}", is_member=True)


def spare(name, *spare_for, **known):
    return Declared(name, f"nanny of {name}", spare_for=frozenset(spare_for or ["room"]), **known)


def taken(*workers, absent=None, now=PATIENCE):
    absent = absences(workers, {}, 0.0) if absent is None else absent
    return assign(workers, absent, now, PATIENCE)


def test_a_spare_takes_the_place_of_a_follower_that_is_not_there():
    assert taken(leader(), member("room.1"), spare("b9")) == {"b9": "room.2"}
    assert taken(leader(), member("room.1"), member("room.2"), spare("b9")) == {}


def test_nobody_takes_the_place_of_a_leader():
    assert taken(member("room.1"), member("room.2"), spare("b9", "room", "room.0")) == {}


def test_places_are_filled_in_order_by_the_first_spares():
    gang = leader(size=12)
    followers = [member(f"room.{rank}") for rank in range(1, 12) if rank not in (2, 10)]
    found = taken(gang, *followers, spare("b"), spare("a"), spare("c"))
    assert found == {"a": "room.2", "b": "room.10"}
    other = leader("attic", 2)
    assert taken(gang, other, *followers, spare("a", "room", "attic")) == {"a": "attic.1"}


def test_who_may_take_one_place_only_leaves_the_others_to_others():
    assert taken(leader(), spare("a"), spare("b", "room.1")) == {"a": "room.2", "b": "room.1"}


@pytest.mark.parametrize(
    ("spare_for", "fits"),
    [("room", True), ("room.1", True), ("room.2", False), ("roo", False), ("room.1.1", False)],
)
def test_a_spare_is_for_gangs_or_for_members(spare_for, fits):
    assert may_take({spare_for}, "room.1") == fits


def test_a_spare_has_one_place_and_a_place_one_spare():
    holding = spare("a", place="room.1")
    assert taken(leader(), holding) == {}
    assert taken(leader(), holding, spare("b")) == {"b": "room.2"}


def test_who_leaves_or_is_silent_takes_no_place_and_a_gang_that_leaves_is_given_none():
    assert taken(leader(), spare("a", is_leaving=True), spare("b", is_silent=True)) == {}
    assert taken(leader(is_leaving=True), spare("a")) == {}


def test_who_is_unfit_for_a_gang_takes_no_place_of_it_but_of_others():
    unfit = spare("a", "room", "attic.1", unfit_for=frozenset({"room"}))
    assert taken(leader(size=2), unfit) == {}
    assert taken(leader(size=2), unfit, spare("b")) == {"b": "room.1"}
    assert taken(leader(size=2), leader("attic", 2), unfit) == {"a": "attic.1"}
    assert not replace(unfit, unfit_for=frozenset({"room", "attic"})).is_idle
    assert not spare("a", "room.1", unfit_for=frozenset({"room"})).is_idle


def test_a_place_stays_free_for_its_own_worker_for_a_while():
    workers = [leader(size=2), spare("b9")]
    absent = absences(workers, {}, 100.0)
    assert assign(workers, absent, 100.0 + PATIENCE - 0.1, PATIENCE) == {}
    assert assign(workers, absent, 100.0 + PATIENCE, PATIENCE) == {"b9": "room.1"}
    back = absences([*workers, member("room.1")], absent, 110.0)
    assert back == {}
    assert absences(workers, back, 120.0)["room.1"].since == 120.0


def test_while_a_leader_is_started_again_the_time_of_its_lost_follower_goes_on():
    """Those followers that are there, which are started again with it, have all of theirs."""
    gang = [leader(), member("room.2"), spare("b9")]
    lost = absences(gang, {}, 0.0)
    assert set(lost) == {"room.1"}
    away = absences([spare("b9")], lost, 5.0)
    back = absences([leader(), spare("b9")], away, PATIENCE)
    assert back == {"room.1": Absence("nanny-0", 0.0), "room.2": Absence("nanny-0", PATIENCE)}
    spares = [spare("b9"), spare("b8")]
    assert assign([leader(), *spares], back, PATIENCE, PATIENCE) == {}, (
        "who else comes is not known"
    )
    whole = [leader(), member("room.2"), *spares]
    now = absences(whole, back, PATIENCE)
    assert assign(whole, now, PATIENCE, PATIENCE) == {"b8": "room.1"}


def test_a_gang_that_would_not_be_whole_is_given_none():
    attic, room = leader("attic", 3), leader("room", 2)
    one, two = spare("b", "attic", "room"), spare("c", "attic")
    assert taken(attic, one) == {}
    assert taken(attic, room, one) == {"b": "room.1"}
    assert taken(attic, room, one, two) == {"b": "room.1"}
    assert taken(attic, one, two) == {"b": "attic.1", "c": "attic.2"}


def test_a_spare_makes_room_for_a_place_that_no_other_may_take():
    idle = {"a": {"room"}, "b": {"room.1"}}
    assert matched(["room.1", "room.2"], idle) == {"b": "room.1", "a": "room.2"}
    assert matched(["room.1", "room.2"], {"b": {"room.1"}}) == {"b": "room.1"}


def test_a_gang_that_is_started_anew_under_the_same_name_has_all_the_time():
    before = absences([leader(size=2)], {}, 0.0)
    again = absences([leader(size=2, start="another nanny")], before, 1000.0)
    assert again == {"room.1": Absence("another nanny", 1000.0)}


LEADERS = {"attic": 2, "room": 4, "shed": 3}
OWN = [name for gang, size in LEADERS.items() for name in followers_of(gang, size)]
SPARES = {
    "a": {"room"},
    "b": {"room.1", "shed"},
    "c": {"attic", "room", "shed"},
    "d": {"shed.2"},
    "e": {"nobody"},
}
NAMES = [*LEADERS, *OWN, *SPARES]


def declared(name: str) -> Declared:
    if name in LEADERS:
        return leader(name, LEADERS[name], f"nanny of {name}")
    return spare(name, *SPARES[name]) if name in SPARES else member(name)


class Cluster:
    """The workers that are there, and what was seen of them."""

    def __init__(self):
        self.there: dict[str, Declared] = {}
        self.absent: dict[str, Absence] = {}
        self.now = 0.0

    def change(self, come, go, leave, silent, seconds):
        self.now += seconds
        for name in set(go) & set(self.there):
            del self.there[name]
        for name in come:
            self.there.setdefault(name, declared(name))
        for name in set(leave) & set(self.there):
            self.there[name] = replace(self.there[name], is_leaving=True)
        for name, own in self.there.items():
            self.there[name] = replace(own, is_silent=name in silent)

    def look(self):
        """Give the places that are free, and return them."""
        self.absent = absences(list(self.there.values()), self.absent, self.now)
        found = assign(list(self.there.values()), self.absent, self.now, PATIENCE)
        for name, place in found.items():
            self.there[name] = replace(self.there[name], place=place)
        return found

    @property
    def holders(self):
        return {name: own.place for name, own in self.there.items() if own.place}

    def vacant(self):
        """Of gangs that lack nobody else: places that have been free long enough."""
        for name, size in LEADERS.items():
            gang = self.there.get(name)
            lacking = {*followers_of(name, size)} - {*self.there, *self.holders.values()}
            if gang is None or gang.is_leaving or not lacking:
                continue
            if all(self.now - self.absent[place].since >= PATIENCE for place in lacking):
                yield lacking

    def idle(self):
        spares = [own for own in self.there.values() if own.spare_for]
        return [own for own in spares if not (own.place or own.is_leaving or own.is_silent)]


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(NAMES), max_size=16),  # they come, if they are not there
            st.lists(st.sampled_from(NAMES), max_size=4),  # they go, if they are
            st.lists(st.sampled_from([*LEADERS, *SPARES]), max_size=1),  # they are to leave
            st.lists(st.sampled_from(NAMES), max_size=2),  # they are silent, for now
            st.floats(0, 2 * PATIENCE),  # seconds until one looks
        ),
        max_size=25,
    )
)
def test_in_every_story_places_are_taken_once_and_kept(story):
    cluster = Cluster()
    for chapter in story:
        cluster.change(*chapter)
        before = cluster.holders
        for name, place in cluster.look().items():
            assert name not in before, "a spare has two places"
            assert not cluster.there[name].is_leaving
            assert not cluster.there[name].is_silent
            assert place.rpartition(".")[0] in cluster.there, "its leader is there"
            assert place not in cluster.there, "its own worker is not"
        holders = cluster.holders
        assert before.items() <= holders.items(), "a holder has changed"
        assert max(Counter(holders.values()).values(), default=1) == 1, "a place has two holders"
        assert all(may_take(SPARES[name], place) for name, place in holders.items())
        for places in cluster.vacant():
            spares = [own.name for own in cluster.idle()]
            for chosen in permutations(spares, len(places)):
                seats = zip(chosen, places, strict=True)
                assert not all(may_take(SPARES[name], place) for name, place in seats)
        for name in {
            place.rpartition(".")[0] for place in set(holders.values()) - set(before.values())
        }:
            assert {*followers_of(name, LEADERS[name])} <= {*cluster.there, *holders.values()}
        assert cluster.look() == {}, "two looks differ"


@pytest.fixture
def workers(monkeypatch) -> Iterator[Workers]:
    """A cluster with a gang of two that has lost its follower, and with no time to wait for it."""
    monkeypatch.setattr("tasks.cluster.presence.RESTART_SECONDS", 0.0)
    with coming_workers() as found:
        found.come("room", "rollout", "trainer", members=2)
        yield found


def test_a_spare_for_a_gang_that_is_not_there_is_told_of(workers):
    """Misspelt, it would be idle for ever; the gang may come, too."""
    workers.come("b8", "spare:room", "spare:room.1")
    workers.come("b9", "spare:rom", "spare:room.2", "spare:room.1")
    workers.come("c1", "rollout")
    told = []
    await_spares(workers.client, told.append)
    assert told == [
        "the spare b9 is for rom, room.2: no gang or follower that is there is called so"
    ]


def test_a_member_that_is_back_stands_in_for_the_spare_in_its_turn(workers):
    assert workers.seen["room"].lacks == ["room.1"]
    workers.come("b9", "spare:room")
    assert (workers.holder, workers.seen["room"].lacks) == ("b9", [])
    assert workers.seen["room"].spares == {"room.1": "b9"}
    assert workers.seen["b9"].place == "room.1"
    workers.come("room.1", "member")
    workers.come("b8", "spare:room")
    assert workers.holder == "b9"
    workers.go("b9")
    assert workers.holder == "room.1"
    workers.go("room.1")
    assert workers.holder == "b8"


def test_a_spare_that_is_taken_out_gives_way_to_another_one(workers):
    """For good: where a look gives places anew, too."""
    workers.come("b8", "spare:room", "spare:attic")
    assert workers.holder == "b8"
    take_out(workers.client, workers.seen["b8"].address, "room")
    assert workers.holder is None
    assert workers.seen["room"].lacks == ["room.1"]
    assert workers.seen["b8"].idle_for == {"attic"}
    workers.come("b9", "spare:room")
    assert workers.holder == "b9"
    take_out(workers.client, "tcp://127.0.0.1:1", "room")
    leave(workers.client, "b8")
    assert set(workers.seen) == {"room", "b9"}


def test_an_idle_spare_leaves_at_once_and_one_that_has_a_place_with_its_gang(workers):
    workers.come("b8", "spare:attic.1")
    leave(workers.client, "b8")
    assert set(workers.seen) == {"room"}
    workers.come("b9", "spare:room")
    expected = (
        "b9 has the place of room.1 as a spare, and a gang leaves whole: name room; then b9 is "
        "idle, and may leave, too"
    )
    with pytest.raises(UserError) as error:
        leave(workers.client, "b9")
    assert str(error.value) == expected
    workers.go("room")
    assert workers.seen["b9"].place == "room.1"
    leave(workers.client, "b9")
    assert not workers.seen


def test_a_gang_leaves_with_all_its_followers_and_without_its_spares(workers):
    workers.come("b9", "spare:room")
    assert workers.holder == "b9"
    workers.come("room.1", "member")
    workers.come("b8", "spare:room")
    leave(workers.client, "room")
    assert comes_to(lambda: {"room", "room.1"}.isdisjoint(workers.seen))
    assert {name: own.place for name, own in workers.seen.items()} == {"b8": ""}, "b9 starts anew"


def test_spares_are_no_pools_and_not_waited_for(workers):
    workers.come("b9", "spare:room.1", "spare:attic")
    found = devices_of(workers.client, colocated=True)
    assert [(own.name, own.size) for own in found] == [("room", 2)]
    assert await_spares(workers.client, pytest.fail) is None


def test_a_run_waits_for_a_spare_that_is_to_take_a_place(workers, monkeypatch):
    said, patience = [], "tasks.cluster.presence.RESTART_SECONDS"

    def listen(line: str) -> None:
        if line.startswith("waiting"):
            said.append(line)
            monkeypatch.setattr(patience, 0.0)  # it is over now, however long that took

    await_spares(workers.client, listen)
    assert said == [], "there is no spare"
    with pytest.raises(
        UserError, match=r"room.1 is not there; .*, or a spare with --spare-for room"
    ):
        devices_of(workers.client)
    monkeypatch.setattr(patience, 1000.0)
    workers.come("b8", "spare:attic")
    await_spares(workers.client, listen)
    assert said == []
    workers.come("shed", "rollout", "trainer", members=3)
    workers.go("room")
    workers.come("c7", "spare:shed")
    await_spares(workers.client, listen)
    assert said == [], "one is too few for two"
    workers.come("room", "rollout", "trainer", members=2)
    workers.go("shed")
    workers.come("b9", "spare:room")
    await_spares(workers.client, listen)
    assert said == ["waiting for room.1, in whose place there are spares"]
    assert workers.holder == "b9"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_spare_is_idle_again_when_its_gang_has_left(monkeypatch):
    """What the model took there is free again: another process has its place."""
    monkeypatch.setattr("tasks.cluster.presence.RESTART_SECONDS", 0.0)
    spare = ["--host", "127.0.0.2", "--name", "b9", "--resources", "spare:room=1"]
    room, _, single = room_of("127.0.0.1", "127.0.0.2")
    with (
        started_workers(room, single, spare) as (address, _),
        Client(address, set_as_default=False) as client,
    ):

        def seen():
            return {own.name: own for own in present_workers(client).values()}

        before = seen()["b9"]
        assert before.place == "room.1"
        leave(client, "room")
        assert comes_to(lambda: {"b9", "single"} == set(seen()), 120)
        after = seen()["b9"]
        assert after.place == ""
        assert after.address != before.address
