"""Addresses of what ``digen up`` starts."""

import distributed.utils
import pytest

from deployments.operation.services import DASK, PREFECT, new_addresses
from deployments.operation.state import Options
from digen_core.errors import UserError

OPTIONS = Options(
    cluster="2-cores", workers=True, host="0.0.0.0", tls=True, prefect_auth=True,
    mlflow_auth=True, names=(), deployments="x", ports=(1, 2, 3, 4),
)  # fmt: skip


@pytest.fixture
def own_address(monkeypatch):
    """Return a function that sets by which address others reach this machine, as it thinks."""
    return lambda address: monkeypatch.setattr(distributed.utils, "get_ip", lambda: address)


def test_others_are_told_the_address_by_which_they_reach_this_machine(own_address):
    own_address("10.0.0.7")
    addresses = new_addresses(OPTIONS, {})
    assert addresses[PREFECT].startswith("http://10.0.0.7:")
    assert addresses[DASK].startswith("tls://10.0.0.7:")


def test_a_machine_that_knows_no_such_address_is_to_be_told_it(own_address):
    """As where no route leads out of the network; its name then leads to itself, as on Debian."""
    own_address("127.0.1.1")
    with pytest.raises(UserError, match=r"--host is 0\.0\.0\.0, .* such as --host 10\.0\.0\.1"):
        new_addresses(OPTIONS, {})
