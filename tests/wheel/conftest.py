"""digen as pip installs it: a wheel of this tree in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """Folder of the programs of an environment with the wheel, and this one's packages beside."""
    home = tmp_path_factory.mktemp("installed")
    python = home / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    # Files .pth in there are not read, so an editable digen is not found.
    (Path(own) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.fixture
def call(installed, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a program of the environment in an empty folder."""
    hidden = ("PYTHONPATH", "PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DASK_SCHEDULER_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    (tmp_path / "empty").mkdir()

    def run(*command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        return subprocess.run(
            [str(installed / program), *arguments],
            cwd=tmp_path / "empty",
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
