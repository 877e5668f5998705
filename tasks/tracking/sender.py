"""Send what a spool holds to MLflow: in order, beside the run, again until MLflow takes it."""

import logging
from itertools import islice
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

from digen_core.inputs.addresses import redacted
from digen_core.transport.entries import Entry
from tasks.tracking.delivery import Delivery, Sized, batches
from tasks.tracking.server import first_line, is_refusal
from tasks.tracking.spool import Spool

logger = logging.getLogger(__name__)

MAX_ENTRIES: Final = 500  # read at once
POLL_SECONDS: Final = 2.0
"""How often to look for entries of other processes."""
RETRY_SECONDS: Final = 2.0
"""How long to wait before MLflow, or whether another process still sends, is asked again."""
LAST_WORD_SECONDS: Final = 10.0
"""How long the end of a run asks a server that does not answer, or waits for another process."""
HANGING_SECONDS: Final = 600.0
"""How long the end of a run waits for a call that does not return, such as an upload."""


class Sender:
    """A thread that sends the entries of a spool as they come."""

    def __init__(self, spool: Spool, delivery: Delivery) -> None:
        self._spool = spool
        self._delivery = delivery
        self._changed, self._closing = Event(), Event()
        self._closed_at = 0.0
        self._failing_since: float | None = None
        self._thread = Thread(target=self._run, name="mlflow", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that there is something to send."""
        self._changed.set()

    def close(self) -> None:
        """Wait until all is sent, or MLflow does not answer; what is left stays on disk."""
        self._closed_at = monotonic()
        self._closing.set()
        self._changed.set()
        self._thread.join(HANGING_SECONDS)

    def _run(self) -> None:
        """Send, unless another process does so for the same folder."""
        while not self._given_up():
            try:
                with self._spool.sending() as may_send:
                    if may_send:
                        self._send_all()
                        return
                if self._is_left_to_another():
                    return
            except OSError as error:  # of the folder's disk, which may be away for a while
                self._note_away(error)
            self._pause()

    def _is_left_to_another(self) -> bool:
        """Return whether the run has ended, and the other process has sent all, or takes long."""
        if not self._closing.is_set():
            return False
        return not self._spool.num_unsent or monotonic() - self._closed_at > LAST_WORD_SECONDS

    def _send_all(self) -> None:
        while not self._given_up():
            self._changed.clear()
            closing = self._closing.is_set()  # what came before that is in the spool
            batch = list(islice(self._spool.unsent(), MAX_ENTRIES))
            if batch:
                self._send(batch)
            elif closing:
                self._try_again()
                return
            if self._failing_since is not None:
                self._pause()
            elif not batch:
                self._changed.wait(POLL_SECONDS)

    def _given_up(self) -> bool:
        """Return whether the run has ended, and MLflow does not answer."""
        if self._failing_since is None or not self._closing.is_set():
            return False
        return monotonic() - max(self._closed_at, self._failing_since) > LAST_WORD_SECONDS

    def _pause(self) -> None:
        """Give MLflow some time; at the run's end, less."""
        if self._closing.is_set():
            sleep(RETRY_SECONDS / 4)
        else:
            self._closing.wait(RETRY_SECONDS)

    def _send(self, pairs: list[Sized]) -> None:
        for part in batches(pairs):
            try:
                self._send_part(part)
            except Exception as error:  # MLflow's, its stores', the network's: never the run's
                self._note_failure(error)
                return
            if self._failing_since is not None:
                logger.info("MLflow at %s answers again.", redacted(self._spool.run.uri))
                self._failing_since = None

    def _send_part(self, part: list[Sized]) -> None:
        try:
            self._delivery.deliver([entry for entry, _ in part])
        except Exception as error:
            if not (is_refusal(error) or self._only_its_store_fails(part[0][0])):
                raise
            if len(part) > 1:  # the others may be fine
                for pair in part:
                    self._send_part([pair])
                return
            self._set_aside(part[0][0], error)
        self._spool.acknowledge(len(part), sum(length for _, length in part))

    def _only_its_store_fails(self, entry: Entry) -> bool:
        """Return whether MLflow answers, but not where files and models are kept."""
        return entry["kind"] in ("file", "model") and self._delivery.answers()

    def _set_aside(self, entry: Entry, error: Exception) -> None:
        logger.warning(
            "MLflow at %s did not take %s of %s; it is kept in %s: %s",
            redacted(self._spool.run.uri),
            entry["key"],
            self._spool.run.name,
            self._spool.folder,
            first_line(error),
        )
        self._spool.set_aside(entry, first_line(error))

    def _try_again(self) -> None:
        """Send what was set aside, as far as MLflow takes it by now."""
        entries, left = self._spool.aside(), []
        for entry in entries:
            try:
                self._delivery.deliver([entry])
            except Exception as error:
                left.append({**entry, "reason": first_line(error)})
        if entries:
            self._spool.keep_aside(left)

    def _note_away(self, error: OSError) -> None:
        if self._failing_since is None:
            self._failing_since = monotonic()
            logger.warning(
                "what %s logs is kept in %s, and that cannot be used now; it is sent when it can: "
                "%s",
                self._spool.run.name,
                self._spool.folder,
                first_line(error),
            )

    def _note_failure(self, error: Exception) -> None:
        if self._failing_since is not None:
            return
        self._failing_since = monotonic()
        logger.warning(
            "MLflow at %s does not take what %s logs; the run goes on, and what it logs is kept in "
            "%s and sent later: %s",
            redacted(self._spool.run.uri),
            self._spool.run.name,
            self._spool.folder,
            first_line(error),
        )
