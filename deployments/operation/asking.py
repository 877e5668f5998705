"""Ask a run that is being trained, from another terminal, for its event log."""

from pathlib import Path
from time import monotonic, sleep
from typing import Final

from digen_core.checkpoints.run_state import holder_of
from digen_core.eventlog.file import ask

ANSWER_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1


def ask_run(run_dir: Path) -> str:
    """Have a run write its event log; return why what is there may be old, empty if it is new."""
    if holder_of(run_dir) is None:
        return ""
    try:
        request = ask(run_dir)
    except OSError as error:
        return f"the run cannot be asked: {error.strerror}"
    deadline = monotonic() + ANSWER_SECONDS
    while request.exists():
        if monotonic() > deadline:
            request.unlink(missing_ok=True)
            return (
                f"the run did not answer in {ANSWER_SECONDS:.0f} s: between its iterations, as in "
                "an evaluation, it does not"
            )
        sleep(POLL_SECONDS)
    return ""
