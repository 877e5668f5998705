"""The environment of a run: packages, machine, and revision of the source."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Final

ENVIRONMENT_OF_RUN: Final = "environment.txt"  # in the folder of a run

SOURCE = Path(__file__).parents[2]


def environment() -> str:
    """Return what ``pip freeze`` says, a package a line, under comments about the machine."""
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": str(os.cpu_count()),
        "git": git_revision() or "none",
    }
    lines = [f"# {name}: {value}" for name, value in facts.items()]
    return "\n".join([*lines, *_packages()]) + "\n"


@cache
def _packages() -> list[str]:
    """Names and versions of what is installed: to read them takes a good part of a second."""
    every = {_package(found) for found in distributions()}  # metadata is read anew each time
    return sorted((own for own in every if own), key=str.lower)


def _package(found: Distribution) -> str | None:
    """Return a package's name and version; None: pip was interrupted, and left no metadata."""
    try:
        own = found.metadata
    except FileNotFoundError:  # of the package importlib_metadata, where others import that
        return None
    return f"{own['Name']}=={own['Version']}" if own else None


def read_environment(text: str) -> dict[str, str]:
    """Return the packages and facts of such a text, by name."""
    found = {}
    for line in text.splitlines():
        separator = ": " if line.startswith("# ") else "=="
        name, _, value = line.removeprefix("# ").partition(separator)
        found[name] = value
    return found


def digen_version() -> str:
    """Return the version of this package."""
    try:
        return version("digen")
    except PackageNotFoundError:  # run from a source tree
        return "not installed"


def git_revision() -> str | None:
    """Return the commit of this source tree, "-dirty" if files differ from it.

    None in an installation or without git.
    """
    # The second name fails where the surrounding repository is not digen's own.
    revision = _git("rev-parse", "HEAD", "HEAD:./pyproject.toml")
    if revision is None:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return revision.split()[0] + ("-dirty" if changed else "")


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", *arguments], cwd=SOURCE, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return run.stdout if run.returncode == 0 else None
