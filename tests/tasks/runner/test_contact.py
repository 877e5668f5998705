"""Who watches a run is told when Prefect's server goes away for long, and when it is back."""

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.runner import prefect_api


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(prefect_api, "monotonic", lambda: now[0])
    return now


def test_an_outage_is_told_once_when_it_lasts_and_once_when_it_is_over(clock):
    warnings = []
    with temporary_settings({PREFECT_API_URL: "http://u:secret@h:1/api"}):
        seen = prefect_api.Contact(warnings.append)
        for clock[0] in (101.0, 105.0, 110.0):
            seen.failed()
        assert warnings == []  # it may only be busy
        for clock[0] in (110.5, 130.0):
            seen.failed()
        (lost,) = warnings
        assert lost.startswith("Prefect at http://***@h:1 does not answer; the run goes on")
        for clock[0] in (190.0, 192.0):
            seen.succeeded()
        assert warnings[1:] == ["Prefect at http://***@h:1 answers again, after 1.5 min"]
        clock[0] = 203.0
        seen.failed()
    assert len(warnings) == 3  # the next outage is another one
