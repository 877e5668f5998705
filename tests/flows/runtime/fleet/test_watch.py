"""Who is gone, frozen or hung, as looks at the cluster tell it."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from digen_core.config.schedule import ClusterConfig
from flows.runtime.fleet import watch
from flows.runtime.fleet.task_set import TaskSet
from flows.runtime.fleet.watch import Limits, Watch
from tasks.cluster.presence import Presence

TASK = UUID(int=7)
ADDRESSES = {"rollout-0": "tcp://a:1", "trainer-0": "tcp://a:2"}


def worker(name, address, silent=0.2, executing=None, resources=("rollout",)):
    return Presence(name, address, frozenset(resources), silent, executing or {})


@pytest.fixture
def look(monkeypatch):
    """Return a function that looks at a cluster of some workers, and the watch.

    Looks are as far apart as they are in a run, but for those that are told to come sooner.
    """
    shown, clock = {}, [100.0]
    monkeypatch.setattr(watch, "monotonic", lambda: clock[0])
    monkeypatch.setattr(watch, "present_workers", lambda client: dict(shown))
    it = Watch(None, ClusterConfig())

    def show(*workers, pools=(), after=watch.LOOK_SECONDS, followers=None):
        clock[0] += after
        shown.clear()
        shown.update({each.address: each for each in workers})
        return it.look(ADDRESSES, pools, followers)

    return show, it


BOTH = worker("rollout-0", "tcp://a:1"), worker("trainer-0", "tcp://a:2")


def test_workers_that_are_there_are_left_alone(look):
    show, it = look
    assert it.is_due
    seen = show(*BOTH)
    assert (dict(seen.lost), seen.slow) == ({}, ())
    assert not it.is_due


def test_a_worker_that_is_gone_or_was_started_again_is_lost(look):
    show, _ = look
    assert dict(show(BOTH[0]).lost) == {"trainer-0": "was lost"}
    again = worker("trainer-0", "tcp://a:9")
    assert dict(show(BOTH[0], again).lost) == {"trainer-0": "was lost"}


def test_a_gang_that_was_lost_with_a_member_is_not_lost_again_when_it_is_back(look):
    """Its task failed, too. With a port of its own the leader comes back to the same address."""
    show, it = look
    of_gang = {"trainer-0": {"trainer-0.1": "tcp://a:3"}}
    it.broken("tcp://a:2", "is a gang that cannot go on: member 1 is gone")
    lost = show(*BOTH, followers=of_gang).lost
    assert dict(lost) == {"trainer-0": "is a gang whose member trainer-0.1 (tcp://a:3) was lost"}
    follower = worker("trainer-0.1", "tcp://a:3", resources=())
    assert not show(*BOTH, follower, followers=of_gang).lost


def test_a_worker_is_frozen_if_two_looks_find_it_silent(look):
    show, _ = look
    silent = worker("rollout-0", "tcp://a:1", silent=21.0)
    assert not show(silent, BOTH[1]).lost  # it may be our own process that stood still
    assert dict(show(silent, BOTH[1]).lost) == {"rollout-0": "has sent no heartbeat for 21 s"}


def test_looks_that_follow_at_once_count_as_one(look):
    """As after a task that failed: our process may have stood still, and hears of nobody yet."""
    show, _ = look
    silent = worker("rollout-0", "tcp://a:1", silent=21.0)
    assert not show(silent, BOTH[1]).lost
    for _ in range(2):
        assert not show(silent, BOTH[1], after=0.1).lost
    assert show(silent, BOTH[1]).lost.keys() == {"rollout-0"}


def test_one_silent_look_is_forgiven(look):
    show, _ = look
    silent = worker("rollout-0", "tcp://a:1", silent=21.0)
    assert not show(silent, BOTH[1]).lost
    assert not show(*BOTH).lost
    assert not show(silent, BOTH[1]).lost


def busy(seconds):
    return worker("rollout-0", "tcp://a:1", executing={f"denoise-{TASK}": seconds})


def test_a_task_that_takes_long_is_told_once_and_then_hangs(look):
    show, it = look
    it.begin(TASK, "denoise g00 f0 t03", expected=100.0)
    assert not show(busy(499.0), BOTH[1]).slow
    (text,) = show(busy(501.0), BOTH[1]).slow
    assert text == (
        "worker rollout-0 has been at 'denoise g00 f0 t03' for 501 s, far longer than it should "
        "take; see its log"
    )
    assert not show(busy(1999.0), BOTH[1]).slow
    lost = show(busy(2001.0), BOTH[1]).lost
    assert dict(lost) == {"rollout-0": "has been at 'denoise g00 f0 t03' for 2001 s"}


def test_tasks_of_others_and_those_that_ended_may_take_their_time(look):
    show, it = look
    it.begin(TASK, "denoise", expected=0.0)
    it.end([TASK])
    stranger = worker("trainer-0", "tcp://a:2", executing={"somebody-elses": 1e6})
    assert not show(busy(1e6), stranger).lost


def test_workers_of_pools_are_watched_too(look):
    show, it = look
    it.begin(TASK, "score", expected=1.0)
    executing = {f"score-{TASK}": 700.0}
    pool = worker("judge-3", "tcp://b:1", executing=executing, resources=("judge",))
    assert not show(*BOTH, pool).lost
    assert set(show(*BOTH, pool, pools=["judge"]).lost) == {"judge-3"}


def test_limits_follow_what_a_task_should_take():
    config = ClusterConfig()
    assert Limits.of(config, 0.0) == Limits(120.0, 600.0)
    assert Limits.of(config, 100.0) == Limits(500.0, 2000.0)  # 5 and 20 times
    assert Limits.of(config, None) == Limits(1800.0, 7200.0)  # loading
    assert Limits.of(ClusterConfig(task_timeout=30.0), 100.0) == Limits(15.0, 30.0)


def test_something_should_happen_within_the_longest_warning_of_what_is_under_way(look):
    _, it = look
    assert it.patience == watch.MIN_WARNING
    it.begin(TASK, "train p000", 100.0)
    it.begin(UUID(int=8), "score g00 f0", 1.0)
    assert it.patience == 100.0 * watch.WARNING_FACTOR
    it.end([TASK])
    assert it.patience == watch.MIN_WARNING


def test_what_nobody_waits_for_is_not_counted_with_but_may_hang(look):
    """As where a worker is lost while models are loaded, which is begun anew for all others."""
    show, it = look
    it.begin(TASK, "load model on rollout-0")
    with TaskSet(SimpleNamespace(watch=it), None) as task_set:
        task_set._pending[TASK] = None
        assert it.patience == 1800.0
    assert it.patience == watch.MIN_WARNING
    busy = worker("rollout-0", "tcp://a:1", executing={f"load-{TASK}": 7201.0})
    assert set(show(busy, BOTH[1]).lost) == {"rollout-0"}
