"""Files that digen ships and the command line takes by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from digen_core.config.load import is_config
from digen_core.errors import UserError
from digen_core.inputs.reading import read_toml
from digen_core.inputs.shipped import data_folder

if TYPE_CHECKING:  # they take longer to import than all that a command starts with
    from digen_core.planning.clusters.cluster import Cluster
    from digen_core.sim.scenario import Scenario

Noun = Literal["config", "cluster", "scenario"]

CONFIGS = data_folder("configs")
RECIPES = CONFIGS / "recipes"
CLUSTERS = data_folder("clusters")
SCENARIOS = data_folder("scenarios")

_MANY = 10  # names: of more only those like a wrong one are listed


def recipe_files() -> list[Path]:
    """Return the recipes, by name."""
    return sorted(RECIPES.glob("*.toml"))


def shipped_configs() -> dict[str, Path]:
    """Return the configs and recipes by name."""
    return _by_name(CONFIGS, RECIPES)


def find_config(name: str) -> Path:
    """Return a shipped config or recipe by its name, or the path of one's own.

    Raises:
        UserError: it is neither.
    """
    return find_file("config", name, CONFIGS, RECIPES)


def find_cluster(name: str) -> "Cluster":
    """Return a shipped cluster by its name, or one from a TOML file.

    Raises:
        UserError: it is neither, or the file is wrong.
    """
    from digen_core.planning.clusters.cluster import load_cluster

    path = find_file("cluster", name, CLUSTERS)
    with telling_kinds("cluster", path):
        return load_cluster(path)


def find_scenario(name: str) -> "Scenario":
    """Return a shipped scenario by its name, or one from a TOML file.

    Raises:
        UserError: it is neither, or the file is wrong.
    """
    from digen_core.sim.scenario import load_scenario

    path = find_file("scenario", name, SCENARIOS)
    with telling_kinds("scenario", path):
        return load_scenario(path)


@contextmanager
def telling_kinds(noun: Noun, path: Path) -> Iterator[None]:
    """Run the body, which reads a file as what the noun says; one of another kind is told as that.

    Raises:
        UserError: of the body, or the file is of another kind.
    """
    try:
        yield
    except UserError as error:
        kind = _kind_of(path)
        if kind in (None, noun):
            raise
        hint = ""
        if (kind, noun) == ("config", "scenario"):
            hint = f", or compare layouts for it: digen plan {quote(str(path))} --cluster CLUSTER"
        raise UserError(f"{path} describes a {kind}, not a {noun}; give a {noun}{hint}") from error


def _kind_of(path: Path) -> Noun | None:
    """Return what a TOML file describes; None: it cannot be told."""
    try:
        tree = read_toml(path, "the file")
    except UserError:
        return None
    if is_config(path):
        return "config"
    devices = tree.get("devices")
    return None if devices is None else "cluster" if isinstance(devices, list) else "scenario"


def find_file(noun: Noun, name: str, *folders: Path) -> Path:
    """Return a shipped TOML file by its name, or the path of one's own.

    Args:
        noun: what it describes, for the error.
        name: of a file in one of the folders, without its ending, or a path.
        folders: of the shipped ones.

    Raises:
        UserError: it is neither.
    """
    shipped, path = _by_name(*folders), Path(name)
    if name in shipped:
        return shipped[name]
    if path.suffix == ".toml" and not path.exists() and path.stem in shipped:
        raise UserError(
            f"cannot read {name}: there is none (seen from {Path.cwd()}); the {noun} that digen "
            f"ships is called {path.stem}"
        )
    if path.suffix != ".toml" and not path.exists():
        near = get_close_matches(name, shipped, 3) if len(shipped) > _MANY else []
        raise UserError(
            f"there is no {noun} {name}; use {', '.join(near or shipped)} or a TOML file like one "
            "of them"
        )
    return path


def _by_name(*folders: Path) -> dict[str, Path]:
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}
