"""Errors of calls to Prefect's server that it does not take."""

from typing import Final

from httpx import HTTPError
from prefect.exceptions import PrefectException

UNANSWERED: Final = (HTTPError, PrefectException, ValueError)
"""It is away, or refuses; ValueError: a proxy answers for it with what is no JSON."""
