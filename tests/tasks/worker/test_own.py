"""What a run's own workers show in its terminal."""

import logging

import pytest
from distributed.comm.core import CommClosedError

from tasks.worker.own import is_no_lost_connection


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(None, True), (ValueError("broken"), True), (CommClosedError("gone"), False)],
)
def test_lost_connections_are_not_shown(error, is_shown):
    info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("distributed.worker", logging.ERROR, "", 1, "text", (), info)
    assert is_no_lost_connection(record) is is_shown
