"""Run a command that ends when the process that started it does, even by SIGKILL.

python -m tasks.cluster.tied [--again] COMMAND ...    with a pipe as its input that nobody writes to

With --again a command that a signal ended, such as the kernel's where memory is short, is started
anew; SIGUSR1 has one that does not answer killed, and so started anew.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from threading import Thread
from typing import Final

AGAIN: Final = "--again"
GRACE_SECONDS: Final = 20.0


class Tied:
    """A command that runs, once or again and again."""

    def __init__(self, command: Sequence[str], *, again: bool) -> None:
        self._command = command
        self._again = again
        self._is_over = False
        self._process = self._start()

    def run(self) -> int:
        """Wait for the command to end, and return its exit code."""
        while True:
            code = self._process.wait()
            if self._is_over or not self._again or code >= 0:
                return code
            self._process = self._start()
            if self._is_over:  # since
                self.end()

    def end(self) -> None:
        """Have the command end, for good."""
        self._is_over = True
        self._process.terminate()

    def kill(self) -> None:
        """Kill the command."""
        self._process.kill()

    def end_with_input(self) -> None:
        """Have the command end when the input does."""
        while os.read(0, 1):  # nothing comes when no process has the other end of the pipe any more
            pass
        self.end()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL)


def main() -> int:
    """Run the command until it ends, or until the input does or SIGTERM comes."""
    again = sys.argv[1] == AGAIN
    tied = Tied(sys.argv[2 if again else 1 :], again=again)
    signal.signal(signal.SIGTERM, lambda number, frame: tied.end())
    signal.signal(signal.SIGUSR1, lambda number, frame: tied.kill())
    Thread(target=tied.end_with_input, daemon=True).start()
    return tied.run()


if __name__ == "__main__":
    sys.exit(main())
