"""Prefect's server may be away for a while: who waits for it, and how it is asked."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Any, Final

import httpx
from prefect.context import AsyncClientContext, SettingsContext, get_settings_context
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, Settings, get_current_settings
from prefect.settings.legacy import Setting
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import PrivateAttr

from digen_core.inputs.addresses import redacted

PROBE_SECONDS: Final = 2.0

PATIENT: Final = {PREFECT_CLIENT_MAX_RETRIES: 8}
"""Settings of a run. Waits double from 2 s on: calls that Prefect's server does not answer are
repeated for 8 minutes, so that nothing is missing if it is back by then."""


SILENT_SECONDS: Final = 10.0
"""A server that does not answer for so long is said to be away: one that is busy comes back."""


def api_answers() -> bool:
    """Say whether Prefect's server answers now."""
    url = get_current_settings().api.url
    if url is None:  # a hidden server of this process
        return True
    try:
        # It is told nothing, whoever it is; and reading certificates takes a tenth of a second.
        response = httpx.get(f"{url}/health", timeout=PROBE_SECONDS, verify=False)
    except httpx.HTTPError:
        return False
    return response.status_code < httpx.codes.INTERNAL_SERVER_ERROR


def send_logs(seconds: float) -> None:
    """Wait until Prefect's server has the logs that are on their way to it.

    In a thread of its own, as notebooks have an event loop in theirs, where Prefect does not wait.

    Args:
        seconds: to wait at most.
    """
    sending = Thread(target=APILogWorker.drain_all, kwargs={"timeout": seconds})
    sending.start()
    sending.join()


class Contact:
    """Contact with Prefect's server, as the calls of a thread find it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Begin with a server that answers.

        Args:
            warn: is told when contact is lost, and when it is made again.
        """
        self._warn = warn
        self._answered = monotonic()
        self._is_lost = False

    def failed(self) -> None:
        """Take in that the server did not answer, or that something else answered for it."""
        if not self._is_lost and monotonic() - self._answered > SILENT_SECONDS:
            self._is_lost = True
            self._warn(
                f"{_name()} does not answer; the run goes on, and what it has to tell is sent when "
                "that answers again"
            )

    def succeeded(self) -> None:
        """Take in that the server answered."""
        if self._is_lost:
            minutes = (monotonic() - self._answered) / 60
            self._warn(f"{_name()} answers again, after {minutes:.1f} min")
        self._answered, self._is_lost = monotonic(), False


def _name() -> str:
    url = get_current_settings().api.url
    return "Prefect's server" if url is None else f"Prefect at {redacted(url).removesuffix('/api')}"


@contextmanager
def one_async_client() -> Iterator[None]:
    """Let all that Prefect does asynchronously in the body share a client.

    Else each flow run of an iteration opens one, which takes 25 ms of work and a request.
    """
    context = AsyncClientContext()
    run_coro_as_sync(context.client.__aenter__())
    token = AsyncClientContext.__var__.set(context)
    try:
        yield
    finally:
        AsyncClientContext.__var__.reset(token)
        run_coro_as_sync(context.client.__aexit__(None, None, None))


class _KnownSettings(SettingsContext):
    """A context of settings that is serialized once, whichever flow runs are called in it."""

    _serialized: dict[str, Any] | None = PrivateAttr(None)

    def serialize(self, include_secrets: bool = True) -> dict[str, Any]:
        """Return the same dict each time; nobody changes it."""
        if not include_secrets:
            return super().serialize(include_secrets)
        self._serialized = self._serialized or super().serialize()
        return self._serialized


_known: dict[tuple[tuple[str, object], ...], tuple[Settings, _KnownSettings]] = {}


@contextmanager
def with_settings(updates: Mapping[Setting, Any]) -> Iterator[None]:
    """Run the body with other settings, as Prefect's ``temporary_settings`` does.

    What takes 30 ms there, and as long when a task runner sends the settings to its workers, is
    done once for the same updates of the same settings.
    """
    context = get_settings_context()
    key = tuple((setting.name, value) for setting, value in updates.items())
    base, known = _known.get(key, (None, None))
    if known is None or base != context.settings:
        own: Any = dict(updates)  # Prefect's type for it names every setting
        made = context.settings.copy_with_update(updates=own)
        known = _KnownSettings(profile=context.profile, settings=made)
        known.serialize()  # its copies have it
        _known[key] = context.settings, known
    with known.model_copy():  # a context is entered once at a time
        yield
