"""What a run logs reaches MLflow, whatever fails for a while."""

import errno
import sqlite3
from threading import Event

import pytest
from sqlalchemy.exc import OperationalError

from support.waiting import comes_to
from tasks.tracking import sender
from tasks.tracking.sender import Sender
from tasks.tracking.server import first_line
from tasks.tracking.spool import RunOfSpool, Spool

RUN = RunOfSpool(uri="http://x", experiment_id="1", mlflow_run_id="r", name="run")


class Taking:
    """A delivery to a server that takes everything."""

    def __init__(self):
        self.keys = []

    def deliver(self, entries):
        self.keys += [entry["key"] for entry in entries]


@pytest.mark.parametrize("broken", ["sending", "unsent"])
def test_a_disk_that_fails_for_a_while_does_not_end_it(tmp_path, monkeypatch, caplog, broken):
    monkeypatch.setattr(sender, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(sender, "POLL_SECONDS", 0.02)
    spool, taking = Spool.create(tmp_path, RUN), Taking()
    whole, failures, failed = getattr(spool, broken), [True] * 3, Event()

    def fail_for_a_while():
        if failures:
            failures.pop()
            raise OSError(errno.ESTALE, "Stale file handle")
        failed.set()
        return whole()

    monkeypatch.setattr(spool, broken, fail_for_a_while)
    spool.append("a", "tags")
    sending = Sender(spool, taking)
    assert failed.wait(60)
    spool.append("b", "tags")
    sending.close()
    assert taking.keys == ["a", "b"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"what run logs is kept in {tmp_path / 'tracking'}, and that cannot be")
    assert said.endswith("Stale file handle")


def test_who_ends_waits_for_what_another_process_is_about_to_send(tmp_path, monkeypatch):
    """As an evaluation of a run that trains does: it warned of entries that were under way."""
    monkeypatch.setattr(sender, "POLL_SECONDS", 0.3)
    monkeypatch.setattr(sender, "RETRY_SECONDS", 0.1)
    training, evaluation = Spool.create(tmp_path, RUN), Spool.create(tmp_path, RUN)
    first = Sender(training, Taking())
    training.append("a", "tags")
    first.wake()
    assert comes_to(lambda: not training.num_unsent)  # it is the one who sends
    second = Sender(evaluation, Taking())
    evaluation.append("b", "tags")
    second.close()
    assert not evaluation.num_unsent
    first.close()


def test_who_ends_waits_no_longer_than_for_mlflow(tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "LAST_WORD_SECONDS", 0.2)
    monkeypatch.setattr(sender, "RETRY_SECONDS", 0.1)
    spool = Spool.create(tmp_path, RUN)
    spool.append("a", "tags")
    with spool.sending():  # another process does, and hangs
        Sender(Spool.create(tmp_path, RUN), Taking()).close()
    assert spool.num_unsent == 1


def test_the_reason_is_that_of_the_database_where_sqlalchemy_says_first_when_it_wrote():
    full = sqlite3.OperationalError("database or disk is full")
    error = OperationalError("INSERT INTO metrics", {}, full)
    error.add_detail(
        "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush "
        "block if this flush is occurring prematurely)"
    )
    assert first_line(error) == "(sqlite3.OperationalError) database or disk is full"
