"""The page about scripts and notebooks is followed, as a script that has no guard."""

import os
import subprocess
import sys

import pytest

from support.pages import ROOT, read_page

PAGE = read_page((ROOT / "docs/tutorials/python.md").read_text())


@pytest.mark.operation
def test_its_cells_are_a_script_that_trains(tmp_path):
    for file, content in PAGE.files.items():
        (tmp_path / file).write_text(content)
    environment = {name: value for name, value in os.environ.items() if "_URI" not in name}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("finished") == 2
    assert len(list((tmp_path / "runs").glob("from-python-*"))) == 1
