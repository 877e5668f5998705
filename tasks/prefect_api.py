"""Prefect's server may be away for a while: who waits for it, and how it is asked."""

from typing import Final

import httpx
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings

PROBE_SECONDS: Final = 2.0

PATIENT: Final = {PREFECT_CLIENT_MAX_RETRIES: 8}
"""Settings of a run. Waits double from 2 s on: calls that Prefect's server does not answer are
repeated for 8 minutes, so that nothing is missing if it is back by then."""


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
