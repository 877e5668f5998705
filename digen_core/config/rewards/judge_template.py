"""Templates of the rewards ``judge`` and ``pairwise``: what a model is asked, and how it answers.

A template is a TOML file. Any other file is the text of a question to be answered with yes or no,
or, of two samples, with A or B.

    score = "rubric"                 # or "yes_no", or "pattern"
    user = '''Rate the image. It was made for: {prompt}'''

    [components.light]
    range = [1, 5]

``{prompt}`` is the sample's prompt and ``{NAME}`` its metadata column of that name; all other
braces are as they stand. What is put in is not looked at again, so a prompt may hold anything.
"""

import json
import math
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from digen_core.config.load import describe_fields
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import SETTINGS_BYTES, read_text, read_toml, shown
from digen_core.inputs.shipped import SCHEME, data_folder, located
from digen_core.strict import Strict

PROMPT: Final = "prompt"
QUESTION: Final = "question"
"""What the reward ``dpg`` puts in, beside the prompt and its columns."""

_WHAT: Final = "the judge's template"
_COLUMN: Final = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
_TAKEN: Final = ("score", "failed")


def _rising(ends: tuple[float, float]) -> tuple[float, float]:
    if not 0 < ends[1] - ends[0] < math.inf:
        raise ValueError("must be the lowest and the highest score, such as [1, 5]")
    return ends


def _with_one_group(pattern: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"has {groups} groups; put the number, and only it, in parentheses")
    return pattern


def _with_free_names(components: dict[str, "Component"]) -> dict[str, "Component"]:
    for name in components:
        if name in _TAKEN or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name):
            raise ValueError(
                f"a component cannot be called {shown(name)}; use letters, digits, _ and -, and "
                f"another name than {' and '.join(_TAKEN)}"
            )
    return components


Range: TypeAlias = Annotated[tuple[float, float], AfterValidator(_rising)]


class _Template(Strict):
    """What every template has."""

    system: str = ""
    """Text of the system message; without one none is sent."""

    source: bool = False
    """Whether the source images of an edit are shown, before the sample."""

    user: str = Field(min_length=1)
    """Text that follows the images."""

    def columns(self) -> set[str]:
        """Return the metadata columns that the texts name."""
        return set(_COLUMN.findall(self.system + "\n" + self.user)) - {PROMPT}

    def texts(self, prompt: str, metadata: Mapping[str, Any]) -> tuple[str, str]:
        """Return the system's and the user's text for a sample.

        Raises:
            ConfigError: a text names a column that the sample has not.
        """
        return _filled(self.system, prompt, metadata), _filled(self.user, prompt, metadata)


class YesNo(_Template):
    """A question: the score is how probable yes is as the first token of the answer."""

    score: Literal["yes_no"] = "yes_no"


class Component(Strict):
    """One score of a rubric."""

    range: Range
    """Lowest and highest score, which become 0 and 1."""

    weight: float = Field(1.0, ge=0)
    """Its share in the mean, relative to the others."""

    meaning: str = ""
    """What the model is told about it."""


class Rubric(_Template):
    """A task that is answered with several named scores, as a JSON object."""

    score: Literal["rubric"]

    components: Annotated[dict[str, Component], AfterValidator(_with_free_names)] = Field(
        min_length=1, max_length=50
    )
    """The scores, by name."""


class Pattern(_Template):
    """A task that is answered with text, in which a number stands."""

    score: Literal["pattern"]

    pattern: Annotated[str, AfterValidator(_with_one_group)]
    """Regular expression whose one group is the number; the last match in the answer counts."""

    range: Range
    """Lowest and highest number, which become 0 and 1."""


class _OfPairs(_Template):
    """What every template has that asks which of two samples is better."""

    first: str = Field("A", min_length=1, max_length=40)
    """What the answer calls the sample that is shown first, in whatever case."""

    second: str = Field("B", min_length=1, max_length=40)
    """What it calls the other one."""

    titles: tuple[str, str] = ("", "")
    """Texts before the images of the one and of the other; an empty one is not sent."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [name.strip().lower() for name in (self.first, self.second)]
        if "" in names or names[0] == names[1]:
            raise ValueError("first and second must be two names, such as A and B")
        return self


class Choice(_OfPairs):
    """A question: how probable each name is as the first token of the answer."""

    score: Literal["choice"] = "choice"


class Verdict(_OfPairs):
    """A task that is answered with text, in which the better sample's name stands."""

    score: Literal["verdict"]

    pattern: Annotated[str, AfterValidator(_with_one_group)]
    """Regular expression whose one group is the name; the last match in the answer counts."""

    tie: str | None = Field(None, min_length=1, max_length=40)
    """What stands in its place if neither is better; null: the model has to choose."""

    @model_validator(mode="after")
    def _check_tie(self) -> Self:
        taken = [name.strip().lower() for name in (self.first, self.second, "")]
        if self.tie is not None and self.tie.strip().lower() in taken:
            raise ValueError(
                f"tie is {shown(self.tie)}; use another name than those of first and second"
            )
        return self


Template: TypeAlias = YesNo | Rubric | Pattern
PairTemplate: TypeAlias = Choice | Verdict

_KINDS: Final[Mapping[str, type[Template]]] = {
    "yes_no": YesNo, "rubric": Rubric, "pattern": Pattern,
}  # fmt: skip
_PAIR_KINDS: Final[Mapping[str, type[PairTemplate]]] = {"choice": Choice, "verdict": Verdict}

_T = TypeVar("_T", bound=_Template)


def load_template(path: str) -> Template:
    """Read a template of the reward ``judge``: a shipped one, digen:judges/NAME, or a file.

    Raises:
        UserError: it cannot be read, or a key or value is wrong.
    """
    template: Template = _load(path, _KINDS, "yes_no", "pairwise", _PAIR_KINDS)
    if isinstance(template, Rubric) and not _weights(template):
        raise UserError(f"{path}: all components have the weight 0, or too large ones")
    return template


def load_pair_template(path: str) -> PairTemplate:
    """Read a template of the reward ``pairwise``; as `load_template`."""
    template: PairTemplate = _load(path, _PAIR_KINDS, "choice", "judge", _KINDS)
    return template


def _load(
    path: str, kinds: Mapping[str, type[_T]], default: str, other: str, others: Collection[str]
) -> _T:
    """Read a template of some kinds.

    Args:
        path: of it.
        kinds: by what its ``score`` says.
        default: of them.
        other: type of reward that has other templates.
        others: what these say.
    """
    file = Path(located(path))
    if not file.exists():
        shipped = sorted(f"{SCHEME}judges/{own.name}" for own in data_folder("judges").iterdir())
        raise UserError(
            f"there is no judge's template {path} (seen from {Path.cwd()}); give a file, or one of "
            f"digen's: {', '.join(shipped)}"
        )
    if file.suffix != ".toml":
        tree: dict[str, Any] = {"user": read_text(file, _WHAT, SETTINGS_BYTES)}
    else:
        tree = read_toml(file, _WHAT)
    score = tree.get("score", default)
    kind = kinds.get(score) if isinstance(score, str) else None
    if kind is None:
        whose = f", which is for the reward type {other!r}" if score in [*others] else ""
        raise UserError(f"{path}: score is {shown(score)}{whose}; use {', '.join(kinds)}")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{path}: {describe_fields(error, kind)}") from error


def check_columns(template: Template | PairTemplate, columns: Sequence[str]) -> None:
    """Check that there is what a template's texts name.

    Raises:
        ConfigError: a name is neither ``prompt`` nor one of the metadata columns.
    """
    for name in sorted(template.columns() - set(columns)):
        raise ConfigError(
            f"it names {{{name}}}, which is neither {{{PROMPT}}} nor one of "
            f"prompts.metadata_columns {list(columns)}; add it there"
        )


def _weights(rubric: Rubric) -> bool:
    """Say whether the weights can be divided by their sum."""
    total = math.fsum(component.weight for component in rubric.components.values())
    return 0 < total < math.inf


def _filled(text: str, prompt: str, metadata: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == PROMPT:
            return prompt
        if name not in metadata:
            raise ConfigError(f"the judge's template names {{{name}}}, which the prompt has not")
        own = metadata[name]
        return own if isinstance(own, str) else json.dumps(own, ensure_ascii=False)

    return _COLUMN.sub(value, text)
