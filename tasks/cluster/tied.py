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
from time import sleep
from typing import Final

AGAIN: Final = "--again"
GRACE_SECONDS: Final = 20.0


class Tied:
    """A command that runs, once or again and again."""

    def __init__(self, command: Sequence[str], *, again: bool) -> None:
        """Start nothing yet: who is to end before has nothing to end."""
        self._command = command
        self._again = again
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Start the command, wait for it to end, and return its exit code."""
        code = 0
        while not self._is_over:
            self._process = process = self._start()
            if self._is_over:  # since
                self.end()
            code = process.wait()
            if not self._again or code >= 0:
                break
        return code

    def end(self) -> None:
        """Have the command end, for good."""
        self._is_over = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the command."""
        if self._process is not None:
            self._process.kill()

    def end_with_input(self) -> None:
        """Have the command end when the input does."""
        while os.read(0, 1):  # nothing comes when no process has the other end of the pipe any more
            pass
        self.end()
        sleep(GRACE_SECONDS)  # with the command this process ends, and so does this thread
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
