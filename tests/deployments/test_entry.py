"""The way in to the command, before it can handle signals itself."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

INTERRUPTED = """
import os, signal, sys
from importlib import import_module

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
module, _, function = sys.argv[1].partition(":")
getattr(import_module(module), function)()
"""


def test_ctrl_c_while_the_command_imports_is_no_traceback():
    entry = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]["digen"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, entry],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
