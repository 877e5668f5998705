"""A command that is told to stop ends in order, whatever it is sent meanwhile."""

import signal
import subprocess
import sys

import pytest

from deployments import stopping as module
from deployments.stopping import Stopping


@pytest.fixture
def stopping(monkeypatch):
    started = []

    class Timer:
        def __init__(self, seconds, end):
            self.seconds, self.end = seconds, end

        def start(self):
            started.append(self)

    monkeypatch.setattr(module, "Timer", Timer)
    stopping = Stopping()
    stopping.started = started
    return stopping


def test_a_second_sigterm_does_not_disturb_what_ends_already(stopping):
    with pytest.raises(SystemExit) as ended:
        stopping.on_terminate(signal.SIGTERM, None)
    assert ended.value.code == 143
    stopping.on_terminate(signal.SIGTERM, None)
    (timer,) = stopping.started
    assert timer.seconds == module.STOP_SECONDS


TAKEN = """
import os, signal, sys, time
from deployments import stopping
stopping.STOP_SECONDS = 0.1
stopping.install()
signal.signal(signal.SIGTERM, lambda *_: None)  # as Prefect does in a flow
if sys.argv[1] == "child":  # of a data loader, which ends it so
    if not (child := os.fork()):
        time.sleep(60)
    time.sleep(1)  # until it has begun
    os.kill(child, signal.SIGTERM)
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
else:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("who", "code", "said"), [("itself", 143, "digen: stopped\n"), ("child", 0, "")]
)
def test_a_sigterm_that_somebody_else_handles_ends_it_too(who, code, said):
    """What Prefect does then may take minutes, where its server is away."""
    command = [sys.executable, "-W", "ignore", "-c", TAKEN, who]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, said)


def test_a_sigterm_does_not_disturb_what_ctrl_c_ends_already(stopping):
    stopping.begin()
    stopping.on_terminate(signal.SIGTERM, None)
    assert len(stopping.started) == 1


def test_a_second_interrupt_ends_it_at_once(stopping, monkeypatch):
    ended = []
    monkeypatch.setattr(stopping, "end_now", lambda: ended.append(True))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            stopping.on_interrupt(signal.SIGINT, None)
    assert ended == [True]
    assert len(stopping.started) == 1


HUNG_UP = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1:] else signal.SIG_DFL)
from deployments.stopping import install
install()
try:
    signal.raise_signal(signal.SIGHUP)
finally:
    print("in order")
"""


@pytest.mark.parametrize(("arguments", "code"), [((), 143), (("nohup",), 0)])
def test_a_closed_terminal_ends_it_as_sigterm_does_but_for_nohup(arguments, code):
    command = [sys.executable, "-c", HUNG_UP, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "in order\n", "")
