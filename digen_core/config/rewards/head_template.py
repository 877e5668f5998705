"""Templates of the rewards that are reward models: the instruction that one was trained with.

It is a text file: ``{text_prompt}`` is the sample's prompt, each mark of the model stands in it
once, in the model's order, and all else is as it stands.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import SETTINGS_BYTES, read_text, shown

PROMPT: Final = "{text_prompt}"

_MARK: Final = re.compile(r"<\|\w+\|>")
_WHERE: Final = "docs/rewards.md shows the line that writes it from the published package"


def load_head_template(path: str, marks: Sequence[str]) -> str:
    """Return the text of a template.

    Args:
        path: of the file.
        marks: that have to stand in it, in this order.

    Raises:
        ConfigError: it cannot be read, or lacks something, or has something too often; the message
            is one line.
    """
    try:
        text = read_text(Path(path), "the template", SETTINGS_BYTES)
    except UserError as error:
        raise ConfigError(f"{error}; {_WHERE}") from error
    for part in (PROMPT, *marks):
        if text.count(part) != 1:
            raise ConfigError(
                f"{path} has {part} {text.count(part)} times, but must have it once; {_WHERE}"
            )
    if (found := _MARK.findall(text)) != list(marks):
        raise ConfigError(f"{path} has {', '.join(found)}, not {', '.join(marks)}; {_WHERE}")
    return text


def filled(template: str, prompt: str) -> str:
    """Return a template's text for a prompt.

    Raises:
        ConfigError: the prompt has what would be read as a mark.
    """
    check_prompt(prompt)
    return template.replace(PROMPT, prompt)


def check_prompt(prompt: str) -> None:
    """Refuse a prompt that has what a tokenizer may read as one of its marks.

    Raises:
        ConfigError: it has.
    """
    if found := _MARK.search(prompt):
        raise ConfigError(
            f"the prompt {shown(prompt)} has {found[0]}, which the model would read as a mark; "
            "leave it out"
        )
