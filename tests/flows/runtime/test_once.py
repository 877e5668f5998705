"""A flow of a run is done once, whatever the user has set for other flows."""

import os
import subprocess
import sys

import pytest

FOUND = """
from importlib import import_module
from pkgutil import walk_packages
from prefect import Flow
import flows
for module in walk_packages(flows.__path__, "flows."):
    for name, value in vars(import_module(module.name)).items():
        if isinstance(value, Flow):
            print(name, value.retries, value.persist_result)
"""


@pytest.mark.ci
def test_no_flow_is_retried_or_taken_for_done():
    variables = {"PREFECT_FLOWS_DEFAULT_RETRIES": "2", "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true"}
    done = subprocess.run(
        [sys.executable, "-c", FOUND],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert {"post_train", "evaluate_run", "emulate", "prepare"} <= found.keys()
    assert set(map(tuple, found.values())) == {("0", "False")}
