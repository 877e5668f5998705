"""Published prompt sets: what tables and folders of them are told by.

Tables are told by their columns, folders by the names of their files. What is told by nothing in
here is read as it stands, or refused: nothing is guessed.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from digen_core.data.rows import Row
from digen_core.errors import ConfigError
from digen_core.inputs.reading import listed

TEXT_COLUMN: Final = "prompt"
"""The column of prompts, whatever a published table calls it; the only one of a text file."""

GENEVAL_TASKS: Final[Mapping[str, str]] = {
    "single_object": "Single object",
    "two_object": "Two object",
    "counting": "Counting",
    "colors": "Colors",
    "position": "Position",
    "color_attr": "Color attribution",
}
"""GenEval's tasks in the order of its tables, by their tags, and what it calls them there."""

GENEVAL_COLUMNS: Final = ("tag", "include", "exclude")
"""Metadata columns that say what is asked for."""

DPG_CATEGORIES: Final[Mapping[str, str]] = {
    "global": "Global",
    "entity": "Entity",
    "attribute": "Attribute",
    "relation": "Relation",
    "other": "Other",
}
"""DPG-Bench's broad categories of questions in the order of its tables, and their titles there."""

DPG_COLUMNS: Final = ("proposition_id", "dependency", "tuple", "question_natural_language")
"""Metadata columns of its questions: a list of one value for each question of a prompt."""

Part = Literal["train", "evaluation"]
"""What prompts of a folder are for."""


@dataclass(frozen=True, slots=True)
class Table:
    """A published table."""

    name: str
    told_by: frozenset[str]  # columns
    prompt: str  # column of the prompts
    maybe: frozenset[str] = frozenset()  # columns that few rows have, or none
    key: str | None = None  # column whose equal values are rows of one prompt
    listed: frozenset[str] = frozenset()  # columns that are lists then, of all rows of the prompt


TABLES: Final = (
    Table("GenEval", frozenset({"tag", "include", "prompt"}), "prompt", frozenset({"exclude"})),
    Table("DrawBench", frozenset({"Prompts", "Category"}), "Prompts"),
    Table("PartiPrompts", frozenset({"Prompt", "Category", "Challenge"}), "Prompt"),
    Table(
        "VBench", frozenset({"prompt_en", "dimension"}), "prompt_en", frozenset({"auxiliary_info"})
    ),
    Table(
        "DPG-Bench",
        frozenset({"item_id", "text", "proposition_id"}),
        "text",
        key="item_id",
        listed=frozenset({*DPG_COLUMNS, "category_broad", "category_detailed"}),
    ),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a table has the columns that are wanted."""

    own: Mapping[str, str | None]  # wanted -> its name in the table; None: all rows have null
    table: Table | None = None  # whose rows are put together

    @property
    def names(self) -> list[str]:
        """Columns of the table that are to be read."""
        named = [name for name in self.own.values() if name is not None]
        return list(dict.fromkeys([*named, *self._keys]))

    @property
    def _keys(self) -> list[str]:
        return [self.table.key] if self.table and self.table.key else []

    def of(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows with the columns by the names that are wanted, a row for each prompt."""
        moved = {wanted: own for wanted, own in self.own.items() if wanted != own}
        if not moved:
            return iter(rows)
        return self._renamed(rows if not self._keys else self._put_together(rows), moved)

    def _renamed(self, rows: Iterable[Row], moved: Mapping[str, str | None]) -> Iterator[Row]:
        for row in rows:
            new = {
                wanted: row.values.get(wanted if own is None else own)
                for wanted, own in moved.items()
            }
            yield Row(row.origin, {**row.values, **new})

    def _put_together(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a row for each prompt: its first one, with lists of what all of them have."""
        assert self.table is not None
        assert self.table.key is not None
        key, prompt, seen = self.table.key, self.table.prompt, dict[str, list[Row]]()
        for row in rows:
            known = seen.setdefault(str(row.values.get(key)), [])
            text = row.values.get(prompt)
            if known and text and text != known[0].values.get(prompt):
                raise ConfigError(
                    f"{row.origin} has another {prompt!r} than {known[0].origin}, but the same "
                    f"{key!r}"
                )
            known.append(row)
        for own in seen.values():
            names = self.table.listed.intersection(own[0].values)
            lists = {name: [row.values.get(name) for row in own] for name in names}
            yield Row(own[0].origin, {**own[0].values, **lists})


def columns_of(wanted: Sequence[str], found: Sequence[str], path: Path | str) -> Columns:
    """Return where a table has the columns that are wanted.

    Args:
        wanted: names; that of the prompts may stand for what a published table calls them.
        found: columns of the table.
        path: of the table, for the error.

    Raises:
        ConfigError: it has one of them not, or is told to be two published tables.
    """
    there = set(found)
    missing = [name for name in wanted if name not in there]
    if not missing:
        return Columns({name: name for name in wanted})
    told = [table for table in TABLES if table.told_by <= there]
    own: dict[str, str | None] = {}
    for name in wanted:
        own[name] = name if name in there else _in(told, name)
        if own[name] is None and not any(name in table.maybe for table in told):
            raise ConfigError(
                f"{path} has no column {name!r}, which the config's [prompts] names; it has "
                f"{listed(found) or 'none'}"
            )
    is_renamed = own.get(TEXT_COLUMN, TEXT_COLUMN) != TEXT_COLUMN
    return Columns(own, told[0] if is_renamed else None)


def _in(told: Sequence[Table], name: str) -> str | None:
    """Return what published tables call a column; None if they have none such, or differ."""
    names = {table.prompt for table in told} if name == TEXT_COLUMN else set()
    return names.pop() if len(names) == 1 else None


@dataclass(frozen=True, slots=True)
class File:
    """A file of a published folder."""

    name: str
    values: Mapping[str, str]  # that all its rows have
    holds_one: bool = False  # it is one prompt


@dataclass(frozen=True, slots=True)
class Folder:
    """A published folder of several files."""

    name: str
    files: Mapping[Part, tuple[str, ...]]  # that it is told by, of each part
    more: Mapping[Part, tuple[str, ...]]  # files that belong to it, if they are there
    column: str | None = None  # that says which file a row is of: its name without `ending`
    ending: Mapping[Part, str] | None = None

    def found_in(self, names: Collection[str], part: Part) -> list[File] | None:
        """Return the files of a part, or None if the folder is another."""
        if not all(name in names for name in self.files[part]):
            return None
        chosen = [*self.files[part], *(name for name in self.more[part] if name in names)]
        return [File(name, self._values(name, part)) for name in chosen]

    def _values(self, name: str, part: Part) -> Mapping[str, str]:
        if self.column is None or self.ending is None:
            return {}
        return {self.column: name.removesuffix(self.ending[part])}


def _folder(name: str, train: str, evaluation: str) -> Folder:
    return Folder(
        name, {"train": (train,), "evaluation": (evaluation,)}, {"train": (), "evaluation": ()}
    )


def _of_kinds(
    name: str, column: str, ending: Mapping[Part, str], kinds: Sequence[str], more: Sequence[str]
) -> Folder:
    """Return a folder with a file for each kind of prompt."""

    def named(chosen: Sequence[str]) -> Mapping[Part, tuple[str, ...]]:
        return {part: tuple(kind + end for kind in chosen) for part, end in ending.items()}

    return Folder(name, named(kinds), named(more), column, ending)


_GENEVAL: Final = "evaluation_metadata.jsonl"
FOLDERS: Final = (
    _folder("flow_grpo's texts", "train.txt", "test.txt"),
    _folder("flow_grpo's GenEval", "train_metadata.jsonl", "test_metadata.jsonl"),
    _folder("GenEval", _GENEVAL, _GENEVAL),
    _of_kinds(
        "T2I-CompBench",
        "category",
        {"train": "_train.txt", "evaluation": "_val.txt"},
        ("color", "shape", "texture", "spatial", "non_spatial", "complex"),
        ("3d_spatial", "numeracy"),
    ),
    _of_kinds(
        "HPDv2",
        "style",
        {"train": ".json", "evaluation": ".json"},
        ("anime", "concept-art", "paintings", "photo"),
        (),
    ),
)

NUMBERED: Final = re.compile(r"[A-Za-z_]*\d+\.txt")
"""A file of DPG-Bench's folder, which holds one prompt: 12.txt, partiprompts97.txt."""
ITEM_COLUMN: Final = "item_id"
"""What DPG-Bench's table calls the name of such a file, without its ending."""


def files_of(folder: Path, names: Collection[str], part: Part) -> list[File] | None:
    """Return the files of a published folder; None if it is none.

    Raises:
        ConfigError: it could be several.
    """
    told = {each.name: files for each in FOLDERS if (files := each.found_in(names, part))}
    texts = sorted(name for name in names if NUMBERED.fullmatch(name))
    if texts and len(texts) == sum(Path(name).suffix in _DATA for name in names):
        told["DPG-Bench"] = [
            File(name, {ITEM_COLUMN: Path(name).stem}, holds_one=True) for name in texts
        ]
    if len(told) > 1:
        first = next(iter(told.values()))[0].name
        raise ConfigError(
            f"{folder} may be a folder of {' or '.join(told)}; name one of its files, as in "
            f"{folder / first}"
        )
    return next(iter(told.values()), None)


_DATA: Final = frozenset((".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow"))
