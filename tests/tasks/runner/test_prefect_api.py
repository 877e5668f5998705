"""Settings of Prefect that are made once and used for each flow run of a run; and its logs."""

import asyncio

from prefect.context import SettingsContext
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_CLIENT_MAX_RETRIES,
    get_current_settings,
    temporary_settings,
)

from tasks.runner.prefect_api import send_logs, with_settings


def retries() -> int:
    return get_current_settings().client.max_retries


def test_settings_hold_in_the_body_and_nest():
    before = retries()
    with with_settings({PREFECT_CLIENT_MAX_RETRIES: before + 1}):
        assert retries() == before + 1
        with with_settings({PREFECT_CLIENT_MAX_RETRIES: before + 2}):
            assert retries() == before + 2
        assert retries() == before + 1
    assert retries() == before


def test_they_are_what_temporary_settings_would_be_and_are_serialized_once():
    updates = {PREFECT_CLIENT_MAX_RETRIES: 7}
    with temporary_settings(updates):
        expected = SettingsContext.get()
    seen = []
    for _ in range(2):
        with with_settings(updates):
            assert get_current_settings() == expected.settings
            seen.append(SettingsContext.get().serialize())
    assert seen[0] == expected.serialize()
    assert seen[1] is seen[0]


def test_other_settings_around_them_are_taken_over():
    updates = {PREFECT_CLIENT_MAX_RETRIES: 7}
    with with_settings(updates):
        pass
    with temporary_settings({PREFECT_API_REQUEST_TIMEOUT: 3.5}), with_settings(updates):
        assert get_current_settings().api.request_timeout == 3.5
        assert SettingsContext.get().serialize()["settings"]["api"]["request_timeout"] == 3.5
        assert retries() == 7


def test_logs_are_waited_for_in_a_notebook_too(monkeypatch):
    """Where an event loop runs Prefect returns something to be awaited."""
    waited = []

    def drain_all(timeout):
        waited.append((timeout, asyncio._get_running_loop()))

    async def cell():
        send_logs(3)

    monkeypatch.setattr(APILogWorker, "drain_all", drain_all)
    asyncio.run(cell())
    assert waited == [(3, None)]
