"""Run a command that ends when the process that started it does, even by SIGKILL.

python -m tasks.cluster.tied COMMAND ...    with a pipe as its input that nobody writes to
"""

import signal
import subprocess
import sys
from threading import Thread

GRACE_SECONDS = 20.0


def main() -> int:
    """Run the command until it ends, or until the input does or SIGTERM comes."""
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    Thread(target=_end_with_input, args=(process,), daemon=True).start()
    return process.wait()


def _end_with_input(process: "subprocess.Popen[bytes]") -> None:
    sys.stdin.buffer.read()  # returns when no process has the other end of the pipe any more
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
