"""The weights that are judged: one pull that fails ends no run."""

from types import SimpleNamespace

import pytest

from tasks import evaluate
from tasks.worker.pulling import PullError


@pytest.fixture
def pulls(monkeypatch):
    """What pulls come to, one after the other, and the seconds that each takes."""
    found = SimpleNamespace(failures=[], seconds=0.0, clock=0.0)

    def load_average(*of, **options):
        found.clock += found.seconds
        return found.failures.pop(0)

    monkeypatch.setattr(evaluate, "load_average", load_average)
    monkeypatch.setattr(evaluate, "monotonic", lambda: found.clock)
    return found


def load():
    evaluate._load("run", None, ("tcp://a:1",), by_delta=False)


def test_what_arrives_damaged_is_pulled_again(pulls):
    pulls.failures = ["it arrived damaged", "a:1 does not answer (CommClosedError)", ""]
    load()
    assert not pulls.failures


def test_after_three_pulls_it_is_given_up(pulls):
    pulls.failures = ["it arrived damaged", "it arrived damaged", "a:1 is gone", ""]
    with pytest.raises(PullError, match="a:1 is gone"):
        load()


def test_one_that_takes_its_time_is_not_tried_again(pulls):
    pulls.failures, pulls.seconds = ["a:1 does not answer (TimeoutError)", ""], 60.0
    with pytest.raises(PullError, match="TimeoutError"):
        load()
