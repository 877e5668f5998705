"""Files that digen ships and the command line takes by name."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from digen_core.errors import UserError
from digen_core.inputs.shipped import data_folder

if TYPE_CHECKING:  # they take longer to import than all that a command starts with
    from digen_core.planning.clusters.cluster import Cluster
    from digen_core.sim.scenario import Scenario

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

    return load_cluster(find_file("cluster", name, CLUSTERS))


def find_scenario(name: str) -> "Scenario":
    """Return a shipped scenario by its name, or one from a TOML file.

    Raises:
        UserError: it is neither, or the file is wrong.
    """
    from digen_core.sim.scenario import load_scenario

    return load_scenario(find_file("scenario", name, SCENARIOS))


def find_file(noun: str, name: str, *folders: Path) -> Path:
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
