"""The cluster of a run, as it is opened."""

from time import sleep

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.launch import connected
from tasks.cluster.presence import present_workers

DEVICES = [Device(name, frozenset({"trainer"})) for name in ("trainer-0", "trainer-1")]
MANAGED_EVERY = 2.0  # seconds, in which Dask's memory manager drops replicas


@pytest.mark.slow
def test_what_a_task_made_stays_on_its_worker():
    """Else it is lost with whoever fetched it, such as the optimizer's state with its standby."""
    with connected(RunConfig(), DEVICES) as (_, client):
        first, second = present_workers(client)
        made = client.submit(bytes, 1000, workers=[first], pure=False)
        for _ in range(4):
            seen = client.submit(len, made, workers=[second], pure=False)
            assert seen.result(timeout=60) == 1000
            sleep(MANAGED_EVERY)
            assert first in client.who_has(made)[made.key]
