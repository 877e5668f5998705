"""Prompts: what each is, and how those of a run are read, once."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from digen_core.config.combinations import check_steps
from digen_core.config.families import FAMILIES, mark_in
from digen_core.config.model import ModelConfig
from digen_core.config.rewards import given
from digen_core.config.run import RunConfig
from digen_core.config.size import Size
from digen_core.data.images import SourceImage, given_images, source_images
from digen_core.data.numbers import scores_in, steps_in, weight_in
from digen_core.data.rows import Row
from digen_core.data.tables import read_rows
from digen_core.errors import ConfigError
from digen_core.inputs.reading import listed, shown
from digen_core.inputs.shipped import located
from digen_core.inputs.text import number_of
from digen_core.strict import is_plain

MAX_CHARACTERS: Final = 100_000
"""Of a prompt; the text encoders read some thousand."""
Metadata = Mapping[str, Any]
"""What else a prompt's row says: column -> what JSON can hold."""


Scores = Mapping[str, tuple[float, ...]]
"""What a row says of the samples that come with it: reward -> a number for each."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and what rewards get to know about it."""

    text: str
    metadata: Metadata = field(default_factory=dict)
    weight: float = 1.0  # how often it is drawn, relative to the others
    origin: str = field(default="", compare=False)  # "prompts.jsonl line 3"
    images: tuple[SourceImage, ...] = ()  # that it is about
    negative: str | None = None  # what guidance steers away from; None: as the config says
    samples: tuple[SourceImage, ...] = ()  # that are trained on; none: they are generated
    scores: Scores = field(default_factory=dict)  # what its row says of them
    is_emptied: bool = False  # whether a model is given an empty text; rewards get the prompt
    num_steps: int | None = None  # in which its samples are denoised; None: as the config says

    @property
    def given_text(self) -> str:
        """What a model is given of the text."""
        return "" if self.is_emptied else self.text

    @property
    def key(self) -> str:
        """What tells it from others: what a model is given, the text or JSON with the rest."""
        return self._key(self.text, self.negative)

    @property
    def normal_key(self) -> str:
        """What is asked for, in the form in which equal prompts are equal."""
        return self._key(normal_text(self.text), None)

    def _key(self, text: str, negative: str | None) -> str:
        given = "" if self.is_emptied else text
        if negative is None and not self.images:
            return given
        return json.dumps([given, [image.digest for image in self.images], negative])

    def shown_in(self, size: Size) -> "Prompt":
        """Return it with no more of its images than a model is shown in a size, and no samples."""
        height, width, _ = size
        images = tuple(own.shrunk(height, width) for own in self.images)
        return replace(self, images=images, samples=())


class SizedPrompt(NamedTuple):
    """A prompt and the size of its samples, in which a model is shown the source images."""

    prompt: Prompt
    size: Size

    @property
    def key(self) -> str:
        """What tells apart what a model is given of it; the size does not matter to a text."""
        return f"{self.prompt.key} {self.size}" if self.prompt.images else self.prompt.key

    @property
    def shown(self) -> "SizedPrompt":
        """The same with no more of its images than a model is shown."""
        return SizedPrompt(self.prompt.shown_in(self.size), self.size)


def train_prompts(config: RunConfig) -> list[Prompt]:
    """Return the prompts that a run trains on.

    Raises:
        ConfigError: they cannot be read; the message names file, line or row, and column.
    """
    prompts = config.prompts
    rows = _rows_of_split(config, prompts.train_split, _columns_of_training(config))
    found = _parse(config, rows, prompts.train, is_trained=True)
    if prompts.evaluation_fraction is not None:
        held_out = _held_out(config, found)
        found = [prompt for prompt in found if prompt.normal_key not in held_out]
    _require_trainable(config, found)
    if not any(prompt.weight for prompt in found):
        raise ConfigError(
            f"prompts.weight_column {prompts.weight_column!r} is 0 in all of {prompts.train} that "
            "is trained on; give some of it a weight above 0"
        )
    return found


def prompts_with_steps(config: RunConfig) -> list[Prompt]:
    """Return the prompts that a run trains on, if they may have their own steps; else none.

    Raises:
        ConfigError: as for ``train_prompts``.
    """
    return train_prompts(config) if config.prompts.steps_column else []


def evaluation_prompts(config: RunConfig) -> list[Prompt]:
    """Return the prompts that a run is judged on.

    Raises:
        ConfigError: as for ``train_prompts``.
    """
    prompts = config.prompts
    if prompts.evaluation is not None:
        columns = _columns(config)
        rows = read_rows(located(prompts.evaluation), columns, "evaluation")
        return _parse(config, rows, prompts.evaluation)
    found = _parse(config, _rows_of_split(config, prompts.evaluation_split), prompts.train)
    if prompts.evaluation_fraction is None:
        return found
    held_out = _held_out(config, found)
    return [prompt for prompt in found if prompt.normal_key in held_out]


def _require_trainable(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    """Check that the algorithm can train trajectories of as many steps as prompts have."""
    firsts = {prompt.num_steps: prompt for prompt in reversed(prompts) if prompt.num_steps}
    for num_steps, prompt in firsts.items():
        try:
            check_steps(config.algorithm, config.rollout, num_steps)
        except ValueError as error:
            why = str(error).replace("rollout.num_steps", "its number of steps")
            raise ConfigError(
                f"{prompt.origin}: its {config.prompts.steps_column!r} is {num_steps}; {why}"
            ) from error


def _rows_of_split(config: RunConfig, split: str, more: Sequence[str] = ()) -> list[Row]:
    """Return the rows of ``prompts.train`` that belong to a split, or all if it has none.

    Args:
        config: of the run.
        split: what the rows are for.
        more: columns, beside those that all prompts have.
    """
    prompts = config.prompts
    named = [*_columns(config), *more, *filter(None, [prompts.split_column])]
    rows = read_rows(located(prompts.train), list(dict.fromkeys(named)))
    if prompts.split_column is None:
        return rows
    values = [str(row.values.get(prompts.split_column)) for row in rows]
    found = [row for row, value in zip(rows, values, strict=True) if value == split]
    if not found:
        raise ConfigError(
            f"{prompts.train} has no row whose {prompts.split_column!r} is {split!r}, but "
            f"{listed(map(repr, sorted(set(values))), 5)}; correct prompts.split_column, "
            "prompts.train_split or prompts.evaluation_split"
        )
    return found


def _held_out(config: RunConfig, prompts: Sequence[Prompt]) -> set[str]:
    """Draw the prompts that are kept for evaluation: the same for any order of the rows."""
    fraction = config.prompts.evaluation_fraction
    assert fraction is not None
    keys = {prompt.normal_key for prompt in prompts}
    count = round(fraction * len(keys))
    if not 0 < count < len(keys):
        raise ConfigError(
            f"prompts.evaluation_fraction is {fraction}, but {config.prompts.train} has only "
            f"{number_of(len(keys), 'different prompt')}; that leaves none for "
            f"{'evaluation' if not count else 'training'}"
        )

    def drawn(key: str) -> bytes:
        return hashlib.blake2b(f"{config.seed} {key}".encode(), digest_size=16).digest()

    return set(sorted(keys, key=drawn)[:count])


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Return 16 hex digits that name prompts with all they come with, and their order."""
    rows = [[own.key, dict(own.metadata), own.weight, *_with_more(own)] for own in prompts]
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=8).hexdigest()


def _with_more(prompt: Prompt) -> list[Any]:
    """Return what else names a prompt: samples that it comes with, and their scores; its steps."""
    more: list[Any] = []
    if prompt.samples:
        more += [[image.digest for image in prompt.samples], dict(prompt.scores)]
    if prompt.num_steps is not None:
        more.append({"num_steps": prompt.num_steps})
    return more


def normal_text(text: str) -> str:
    """Return a prompt's text in the form in which equal prompts are equal."""
    return " ".join(text.split()).casefold()


def _columns(config: RunConfig) -> list[str]:
    """Return the columns that train and evaluation prompts have."""
    prompts = config.prompts
    named = filter(None, (prompts.image_column, prompts.negative_column))
    return [prompts.column, *prompts.metadata_columns, *named]


def _columns_of_training(config: RunConfig) -> list[str]:
    """Return the columns that only prompts that are trained on have."""
    prompts = config.prompts
    numbers = (column for reward in given(config.rewards).values() for column in reward.columns)
    named = filter(None, (prompts.weight_column, prompts.steps_column))
    return [*prompts.sample_columns, *numbers, *named]


def _folder_of(path: str) -> Path:
    """Return the folder from which the paths in prompts are seen."""
    before, star, _ = path.partition("*")
    if star:  # what follows the last slash is of a file's name, whatever is called like it
        return Path(before[: before.rfind("/") + 1])
    place = Path(located(path))
    return place if place.is_dir() else place.parent


def _parse(
    config: RunConfig, rows: Sequence[Row], path: str, *, is_trained: bool = False
) -> list[Prompt]:
    """Return the prompts of rows, whose images are seen from where ``path`` leads.

    Args:
        config: of the run.
        rows: of the prompts.
        path: of their file or folder.
        is_trained: whether they have what only prompts have that are trained on.
    """
    prompts, folder = config.prompts, _folder_of(path)
    image_column = prompts.image_column
    found = [
        Prompt(
            _text(row, prompts.column),
            _metadata(row, prompts.metadata_columns),
            origin=row.origin,
            images=()
            if image_column is None
            else source_images(row, image_column, folder, config.model),
            negative=_negative(row, prompts.negative_column),
            **(_of_training(config, row, folder) if is_trained else {}),
        )
        for row in rows
    ]
    for prompt in found:
        _require_no_marks(prompt, config.model)
    return found


def _of_training(config: RunConfig, row: Row, folder: Path) -> dict[str, Any]:
    """Return what only prompts have that are trained on, by the names of a Prompt."""
    prompts = config.prompts
    column = prompts.weight_column
    return {
        "weight": 1.0 if column is None else weight_in(row, column),
        "samples": given_images(row, prompts.sample_columns, folder),
        "scores": scores_in(row, config.rewards),
        "num_steps": steps_in(row, prompts.steps_column, config.rollout.num_steps),
    }


def _require_no_marks(prompt: Prompt, model: ModelConfig) -> None:
    """Check that what comes with images has nothing in its words that stands for one.

    Of some families no prompt has it.
    """
    family = FAMILIES[model.family]
    if not prompt.images and not family.reads_marks:
        return
    negative = (prompt.origin, prompt.negative)
    if prompt.negative is None:
        negative = ("model.negative_prompt", model.negative_prompt)
    for origin, text in ((prompt.origin, prompt.text), negative):
        if mark := mark_in(text or "", family):
            raise ConfigError(f"{origin}: {shown(text, 80)} {mark}")


def _text(row: Row, column: str) -> str:
    value = row.values.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f"{row.origin} has no prompt: its {column!r} is {shown(value)}; write a text"
        )
    _require_readable(row, column, value)
    return value.strip()


def _negative(row: Row, column: str | None) -> str | None:
    """Return what guidance is to steer away from, if the row says it."""
    value = None if column is None else row.values.get(column)
    if column is None or value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(
            f"{row.origin}: its {column!r} is {shown(value)}, which is no negative prompt; write a "
            "text, or leave it out"
        )
    _require_readable(row, column, value)
    return value


def _require_readable(row: Row, column: str, value: str) -> None:
    if len(value) > MAX_CHARACTERS or not is_plain(value):
        raise ConfigError(
            f"{row.origin} is no prompt: its {column!r} is {shown(value, 80)}; write a text of at "
            f"most {MAX_CHARACTERS} characters, without NUL and halves of characters (surrogates)"
        )


def _metadata(row: Row, columns: Sequence[str]) -> Metadata:
    metadata = {name: row.values.get(name) for name in columns}
    for name, value in metadata.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{row.origin}: its {name!r} is {shown(value)}, which JSON cannot hold; rewards "
                "get texts, finite numbers, true, false, null, and lists and objects of these"
            ) from error
    return metadata
