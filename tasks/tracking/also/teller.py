"""Tell a place what a run logs: from the spool on disk, beside the run, again until it takes it."""

import logging
from contextlib import suppress
from pathlib import Path
from shlex import quote
from threading import Event, Thread
from time import time
from typing import Final

from PIL import Image

from digen_core.config.run import RunConfig
from digen_core.transport.entries import Entry
from digen_core.transport.files import inside
from tasks.tracking.also.places import Place, Point, open_place
from tasks.tracking.server import first_line
from tasks.tracking.spool import Spool

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 60.0
"""How long to wait before a place is asked again."""
CLOSING_SECONDS: Final = 120.0
"""How long the end of a run waits for a place."""

FAILED: Final = "FAILED"
GRIDS: Final = "grids/"


class Teller:
    """A thread that reads a spool from its start, and tells a place what that lacks of it."""

    def __init__(self, name: str, config: RunConfig, spool: Spool) -> None:
        self._name, self._config, self._spool = name, config, spool
        self._changed, self._closing = Event(), Event()
        self._status = FAILED
        self._is_failing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that there is something to tell."""
        self._changed.set()

    def end(self, status: str) -> None:
        """Have the place closed when it has all; MLflow's word says how the run ended."""
        self._status = status
        self._closing.set()
        self._changed.set()

    def join(self) -> bool:
        """Wait until that is so, and return whether it is; who waits in vain is warned."""
        self._thread.join(CLOSING_SECONDS)
        has_all = not self._thread.is_alive() and not self._is_failing
        if not has_all:
            logger.warning(
                "%s has not taken all of %s; 'digen sync %s' tells it again",
                self._name,
                self._spool.run.name,
                quote(str(self._spool.run_dir)),
            )
        return has_all

    def _run(self) -> None:
        while True:
            is_last = self._closing.is_set()
            try:
                self._tell_until_closed()
            except Exception as error:  # of a place, the network, the disk: never the run's
                self._note_failure(error)
            else:
                return
            if is_last:
                return
            self._closing.wait(RETRY_SECONDS)

    def _tell_until_closed(self) -> None:
        """Tell a place all entries, until the run has ended."""
        place = open_place(self._name, self._config, self._spool)
        try:
            self._tell_all(place)
        except BaseException:
            with suppress(Exception):
                place.close(FAILED)
            raise
        place.close(self._status)
        self._is_failing = False

    def _tell_all(self, place: Place) -> None:
        number, offset = 0, 0
        steps: dict[str, int] = {}  # of evaluations
        while True:
            self._changed.clear()
            closing = self._closing.is_set()  # what came before that is in the spool
            before = number
            for entry, length in self._spool.read_from(offset):
                self._tell(place, number, entry, steps)
                number, offset = number + 1, offset + length
            if number > before:
                place.flush(number)
            self._is_failing = False
            if closing:
                return
            self._changed.wait(POLL_SECONDS)

    def _tell(self, place: Place, number: int, entry: Entry, steps: dict[str, int]) -> None:
        try:
            point, content = self._content_of(number, entry, steps)
        except Exception as error:  # what is damaged fails in all ways
            logger.warning("%s is not told %s: %s", self._name, entry["key"], first_line(error))
            return
        if number < place.first or content is None:
            return
        if isinstance(content, Path):
            place.show(point, content.stem, content)
        else:
            place.log(point, content)

    def _content_of(
        self, number: int, entry: Entry, steps: dict[str, int]
    ) -> tuple[Point, dict[str, float] | Path | None]:
        """Return what an entry has for a place, metrics or a picture, and where that stands.

        Args:
            number: of the entry.
            entry: which may be damaged.
            steps: of the evaluations before it; an evaluation adds its own.
        """
        kind, is_shown = entry["kind"], entry.get("in_training", False)
        if kind == "metrics" or (kind == "evaluation" and is_shown):
            axis = "iteration" if kind == "metrics" else "policy_version"
            if kind == "evaluation":
                steps[entry["evaluation"]] = int(entry["step"])
            values = {str(name): float(value) for name, value in entry["metrics"].items()}
            return Point(number, axis, int(entry["step"]), entry["time"] / 1000), values
        is_grid = kind == "file" and is_shown and entry["path"].startswith(GRIDS)
        if is_grid and not self._spool.is_replaced(entry):
            path = inside(self._spool.run_dir, entry["path"])
            with Image.open(path) as picture:
                picture.verify()
            return Point(number, "policy_version", steps[entry["evaluation"]], time()), path
        return Point(number, "", 0, 0.0), None

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning(
                "%s does not take what %s logs; the run goes on, and tells it later: %s",
                self._name,
                self._spool.run.name,
                first_line(error),
            )
        self._is_failing = True
