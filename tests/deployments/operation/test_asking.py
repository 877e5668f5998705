"""A run that is being trained is asked for its event log, and not waited for too long."""

import os
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import pytest

from deployments.operation import asking
from digen_core.checkpoints.run_state import LOCK_OF_RUN
from digen_core.eventlog.file import REQUEST_OF_RUN, answering
from digen_core.transport.files import try_lock


@pytest.fixture
def training(tmp_path):
    """The folder of a run that this process trains."""
    with try_lock(tmp_path / LOCK_OF_RUN) as is_free:
        assert is_free
        (tmp_path / LOCK_OF_RUN).write_text(f"{os.getpid()} on {os.uname().nodename}")
        yield tmp_path


def test_a_run_that_is_over_is_not_asked(tmp_path):
    assert asking.ask_run(tmp_path) == ""
    assert not list(tmp_path.iterdir())


def test_a_run_answers(training):
    def answer():
        deadline = monotonic() + 100
        while monotonic() < deadline:
            with answering(training) as is_asked:
                if is_asked:
                    return
            sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        assert asking.ask_run(training) == ""
        answered.result()


def test_a_run_that_does_not_answer(training, monkeypatch):
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.3)
    assert asking.ask_run(training).startswith("the run did not answer in 0 s: ")
    assert not (training / REQUEST_OF_RUN).exists()
