"""Stopping: a command that is told to stop ends in seconds, whatever hangs.

Ctrl-C, SIGTERM, a closed terminal and a cancel in Prefect first let it end in order: tasks are
dropped, servers and workers are ended, MLflow and Prefect hear of it. What has not ended after
STOP_SECONDS is killed; what a run keeps is whole at any moment. A second Ctrl-C does that at once.
"""

import os
import signal
import socket
import sys
from threading import Thread, Timer
from types import FrameType
from typing import Final

import psutil

from digen_core.inputs.text import printable

STOP_SECONDS: Final = 8.0
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM
SHOW_CURSOR: Final = "\x1b[?25h"


class Stopping:
    """Whether this process was told to stop, and what to say if it has to be killed."""

    def __init__(self) -> None:
        self.text = "stopped"
        self.is_installed = False
        """Whether this process is a command: a script or notebook goes on after its run."""
        self._timer: Timer | None = None
        self._is_terminated = False
        self._code = INTERRUPTED

    def begin(self, code: int = INTERRUPTED) -> None:
        """Let the time run; a second call does nothing.

        Args:
            code: with which the process ends, if it has to be killed.
        """
        if self._timer is None:
            self._code = code
            self._timer = Timer(STOP_SECONDS, self.end_now)
            self._timer.daemon = True
            self._timer.start()

    def end_now(self) -> None:
        """Kill what this process started, and end it."""
        started = psutil.Process().children(recursive=True)
        for process in started:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
        sys.stderr.write(f"{cursor}digen: {printable(' '.join(self.text.split()))}\n")
        sys.stderr.flush()
        os._exit(self._code)

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        if self._timer is not None:
            self.end_now()
        self.begin()
        raise KeyboardInterrupt

    def on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: as an exception it ends what the command started, too.

        In a flow Prefect handles it, and sends it again once it has noted that. What ends already
        is not disturbed by another one, as of a batch system that sends it twice.
        """
        is_interrupted = self._timer is not None and self._code == INTERRUPTED
        if self._is_terminated or is_interrupted:
            return
        self._is_terminated = True
        self.begin(TERMINATED)
        raise SystemExit(TERMINATED)

    def notice_terminations(self) -> None:
        """Let the time run from a SIGTERM on, whoever handles it: in a flow that is Prefect.

        It may wait for a server for minutes there, and SLURM ends that with the run.
        """
        reading, writing = socket.socketpair()
        writing.setblocking(False)  # as Python asks: a handler may not wait
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        # a child without an exec, as of a data loader, would tell of its own signals
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

        def notice() -> None:
            with reading, writing:
                while numbers := reading.recv(64):
                    if signal.SIGTERM in numbers:
                        self.begin(TERMINATED)

        Thread(target=notice, daemon=True).start()


stopping: Final = Stopping()


def on_hangup(number: int, frame: FrameType | None) -> None:
    """Handle SIGHUP, as when the terminal is closed: as SIGTERM, whoever handles that now."""
    signal.raise_signal(signal.SIGTERM)


def install() -> None:
    """Have signals handled in this process; what nohup has it ignore stays ignored."""
    signal.signal(signal.SIGINT, stopping.on_interrupt)
    signal.signal(signal.SIGTERM, stopping.on_terminate)
    stopping.notice_terminations()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, on_hangup)
    stopping.is_installed = True
