"""Files that digen ships: ``digen:models/shapes`` names one in a config, wherever digen lies.

What follows the colon is a place in the package's data. Each process finds its own copy, so a
config that names one works in any folder and on any machine with digen. All other paths are
relative to the working folder. Importing this module must not import torch.
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from digen_core.strict import PathText

SCHEME: Final = "digen:"

_PACKAGE: Final = "deployments"  # whose data they are; nothing of it is imported
_KINDS: Final = ("judges", "models", "prompts")  # folders of what configs name


def data_folder(*parts: str) -> Path:
    """Return a folder of the shipped data, such as that of the configs."""
    return Path(str(files(_PACKAGE))).joinpath(*parts)


def located(path: str) -> str:
    """Return where a path of a config leads: to the shipped file that it names, or as it is."""
    if not path.startswith(SCHEME):
        return path
    return str(data_folder(path.removeprefix(SCHEME)))


def _must_be_shipped(path: str) -> str:
    if path.startswith(SCHEME) and not Path(located(path)).exists():
        named = path.removeprefix(SCHEME).partition("/")[0]
        kinds = [named] if named in _KINDS else _KINDS
        names = [
            f"{SCHEME}{kind}/{found.name}"
            for kind in kinds
            for found in sorted(data_folder(kind).iterdir())
        ]
        raise PydanticCustomError("not_shipped", f"digen ships only {', '.join(names)}")
    return path


MaybeShipped = Annotated[PathText, AfterValidator(_must_be_shipped)]
"""A path, or the name of a file that digen ships."""
