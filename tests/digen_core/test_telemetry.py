"""Telemetry: none of what digen loads reports to its makers, in whatever process."""

import os
import subprocess
import sys

import pytest

from digen_core import NO_TELEMETRY

NOT_ASKED = {*NO_TELEMETRY, "CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_RUNNING_UNIT_TESTS"}
"""Variables for which there is no telemetry anyway."""


def run_with(home, code: str) -> str:
    """Run code in a process of a user who said nothing, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_ASKED}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=environment, text=True)


def test_onnx_runtime_gives_this_machine_no_number_and_gathers_nothing(tmp_path):
    run_with(tmp_path, "import digen_core, onnxruntime")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["deployments.cli", "flows.post_train", "tasks.tracking"])
def test_it_is_switched_off_before_anything_is_loaded_that_has_it(module, tmp_path):
    said = run_with(tmp_path, f"import sys, {module}; print(*sys.modules)").split()
    first = said.index("digen_core")
    assert not {"prefect", "mlflow", "huggingface_hub", "onnxruntime"} & {*said[:first]}
