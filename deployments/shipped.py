"""Files that digen ships and the command line takes by name."""

from pathlib import Path

from digen_core.config import ConfigError

RECIPES = Path(__file__).parent / "configs" / "recipes"


def recipe_files() -> list[Path]:
    """Return the recipes, by name."""
    return sorted(RECIPES.glob("*.toml"))


def find_file(noun: str, name: str, folder: Path) -> Path:
    """Return a shipped TOML file by its name, or the path of one's own.

    Args:
        noun: what it describes, for the error.
        name: of a file in the folder, without its ending, or a path.
        folder: of the shipped ones.

    Raises:
        ConfigError: it is neither.
    """
    shipped = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name in shipped:
        return shipped[name]
    if not name.endswith(".toml") and not Path(name).exists():
        raise ConfigError(
            f"there is no {noun} {name}; use {', '.join(shipped)} or a TOML file like one of them"
        )
    return Path(name)
