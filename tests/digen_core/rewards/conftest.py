"""What the tests of several rewards take."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def template(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a text as a judge's template, and returns its path."""

    def write(text: str, name: str = "own.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write
