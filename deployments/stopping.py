"""Stopping: a command that is told to stop ends in seconds, whatever hangs.

Ctrl-C, SIGTERM, a closed terminal and a cancel in Prefect first let it end in order: tasks are
dropped, servers and workers are ended, MLflow and Prefect hear of it. What has not ended after
STOP_SECONDS is killed; what a run keeps is whole at any moment. A second Ctrl-C does that at once.
"""

import os
import signal
import sys
from threading import Timer
from types import FrameType
from typing import Final

import psutil

from digen_core.inputs.text import printable

STOP_SECONDS: Final = 8.0
INTERRUPTED: Final = 130
SHOW_CURSOR: Final = "\x1b[?25h"


class Stopping:
    """Whether this process was told to stop, and what to say if it has to be killed."""

    def __init__(self) -> None:
        self.text = "stopped"
        self.is_installed = False
        """Whether this process is a command: a script or notebook goes on after its run."""
        self._timer: Timer | None = None

    def begin(self, text: str | None = None) -> None:
        """Let the time run; a second call only changes the text.

        Args:
            text: what a person should know, such as how to resume the run.
        """
        self.text = text or self.text
        if self._timer is None:
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
        os._exit(INTERRUPTED)

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        if self._timer is not None:
            self.end_now()
        self.begin()
        raise KeyboardInterrupt

    def on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: as an exception it ends what the command started, too.

        Prefect kills the process again once it has noted that it was terminated. What ends already
        is not disturbed by another one, as of a batch system that sends it twice.
        """
        if self._timer is not None:
            return
        self.begin()
        raise SystemExit(128 + number)


stopping: Final = Stopping()


def on_hangup(number: int, frame: FrameType | None) -> None:
    """Handle SIGHUP, as when the terminal is closed: as SIGTERM, whoever handles that now."""
    signal.raise_signal(signal.SIGTERM)


def install() -> None:
    """Have signals handled in this process; what nohup has it ignore stays ignored."""
    signal.signal(signal.SIGINT, stopping.on_interrupt)
    signal.signal(signal.SIGTERM, stopping.on_terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, on_hangup)
    stopping.is_installed = True
