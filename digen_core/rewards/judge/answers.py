"""What a judge's server is asked beside a template's texts, and how its answers become scores.

The answers are chat completions as OpenAI's API has them. Each kind of template has its own way:

    yes_no    p(yes) / (p(yes) + p(no)), from the log-probs of the first token of the answer. Tokens
              that differ in case or in the space before them are the same word.
    rubric    the answer is a JSON object; the score is the weighted mean of its numbers.
    pattern   the answer is text; the score is the number where a regular expression says.

A number x of the range [a, b] becomes (x - a) / (b - a), so every score is in [0, 1].

Of two samples, the answer says how sure it is that the one shown first is better: ``first``.

    choice    p(first) / (p(first) + p(second)), likewise from the first token.
    verdict   the answer is text; by the name where a regular expression says 1, 0, or 1/2: a tie.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from digen_core.config.rewards.judge_template import (
    Choice,
    PairTemplate,
    Pattern,
    Rubric,
    Template,
    Verdict,
    YesNo,
)
from digen_core.inputs.reading import parse_json, shown
from digen_core.inputs.text import printable

TOP: Final = 20
"""How many of the first token's log-probs are asked for: as many as such servers give."""

_SPACES: Final = " \t\n\r\u0120\u010a\u2581"  # the last three as tokenizers write them
_SHOWN: Final = 3  # likeliest tokens
_ROUNDING: Final = 1e-3  # log-probs of 0 may come a little above it


def asked_of(template: Template | PairTemplate, max_tokens: int) -> dict[str, Any]:
    """Return what a request has beside model and messages."""
    match template:
        case YesNo() | Choice():
            return {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP}
        case Rubric():
            schema = {"name": "scores", "strict": True, "schema": _schema(template)}
            form = {"type": "json_schema", "json_schema": schema}
            return {"max_tokens": max_tokens, "response_format": form}
        case Pattern() | Verdict():
            return {"max_tokens": max_tokens}
    assert_never(template)


def scores_in(answer: bytes, template: Template) -> dict[str, float]:
    """Return the score that an answer is, by "score", and its components by their names.

    Raises:
        ValueError: it is none; the message goes on after "the server".
    """
    choice = _choice(answer)
    match template:
        case YesNo():
            return _yes_no(choice)
        case Rubric():
            return _rubric(_text(choice), template)
        case Pattern():
            return _pattern(_text(choice), template)
    assert_never(template)


def preference_in(answer: bytes, template: PairTemplate) -> dict[str, float]:
    """Return how sure an answer is that the first sample is better, by "first".

    Raises:
        ValueError: it is none; the message goes on after "the server".
    """
    choice = _choice(answer)
    match template:
        case Choice():
            first, answered = _likelier(choice, template.first, template.second, "choice")
            return {"first": first, "answered": answered}
        case Verdict():
            return {"first": _verdict(_text(choice), template)}
    assert_never(template)


def _schema(template: Rubric) -> dict[str, Any]:
    """Return the JSON schema of a rubric's answer."""
    numbers = {
        name: {"type": "number", "minimum": own.range[0], "maximum": own.range[1]}
        | ({"description": own.meaning} if own.meaning else {})
        for name, own in template.components.items()
    }
    return {
        "type": "object",
        "properties": numbers,
        "required": list(numbers),
        "additionalProperties": False,
    }


def _choice(answer: bytes) -> Mapping[str, Any]:
    """Return the first choice of a chat completion."""
    try:
        tree = parse_json(answer.decode())
    except ValueError as error:
        raise ValueError(f"answered what is not JSON: {error}") from error
    match tree:
        case {"choices": [{"message": {}} as choice, *_]}:
            return dict(choice)
    raise ValueError(f"answered {_short(tree)}, which is no chat completion")


def _text(choice: Mapping[str, Any]) -> str:
    """Return the text of an answer."""
    text = choice["message"].get("content")
    if choice.get("finish_reason") == "length":
        raise ValueError(f"answered {_short(text)}, which max_tokens cut off; raise it")
    if not isinstance(text, str):
        raise ValueError(f"answered without a text: {_short(choice['message'])}")
    return text


def _yes_no(choice: Mapping[str, Any]) -> dict[str, float]:
    """Return p(yes) / (p(yes) + p(no)), and how probable one of the two is: ``answered``."""
    score, answered = _likelier(choice, "yes", "no", "yes_no")
    return {"score": score, "answered": answered}


def _likelier(choice: Mapping[str, Any], one: str, other: str, kind: str) -> tuple[float, float]:
    """Return p(one) / (p(one) + p(other)) of the first token, and the sum of the two."""
    match choice.get("logprobs"):
        case {"content": [{"top_logprobs": [_, *_] as top}, *_]}:
            pass
        case _:
            raise ValueError(
                f"answered without log-probs; a score of {kind} needs a server that gives them "
                f"(logprobs, top_logprobs = {TOP}), or use another template"
            )
    tokens = [_token(each) for each in top]
    names = [name.strip().lower() for name in (one, other)]
    words = dict.fromkeys(names, 0.0)
    for token, logprob in tokens:
        word = token.strip(_SPACES).lower()
        if word in words:
            words[word] += math.exp(logprob)
    answered = sum(words.values())
    if not answered:
        likely = sorted(tokens, key=lambda pair: -pair[1])[:_SHOWN]
        raise ValueError(
            f"answered with neither {one} nor {other} among the {len(tokens)} likeliest tokens, "
            "but " + ", ".join(_short(token) for token, _ in likely)
        )
    return words[names[0]] / answered, answered


def _token(entry: object) -> tuple[str, float]:
    """Return a token and its log-prob."""
    match entry:
        case {"token": str(token), "logprob": int() | float() as logprob} if logprob <= _ROUNDING:
            return token, float(logprob)
    raise ValueError(f"answered {_short(entry)} as a token with its log-prob")


def _rubric(text: str, template: Rubric) -> dict[str, float]:
    """Return the components of a rubric, and their weighted mean."""
    try:
        tree = parse_json(text)
    except ValueError as error:
        raise ValueError(f"answered {_short(text)}, which is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"answered {_short(text)}, which is no JSON object")
    components = template.components
    for name in components:
        if name not in tree:
            raise ValueError(f"answered {_short(text)}, without {name!r}")
    found = {name: _scaled(tree[name], name, own.range) for name, own in components.items()}
    total = math.fsum(own.weight for own in components.values())
    mean = math.fsum(own.weight * found[name] for name, own in components.items()) / total
    return {"score": mean, **found}


def _pattern(text: str, template: Pattern) -> dict[str, float]:
    """Return the score that the last match in a text is."""
    found = _last_match(text, template.pattern)
    try:
        number = float(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"answered {_short(found)} where the pattern has a number") from error
    return {"score": _scaled(number, "score", template.range)}


def _verdict(text: str, template: Verdict) -> float:
    """Return whether the last match in a text names the first sample: 1, 0, or 1/2 for a tie."""
    found = _last_match(text, template.pattern)
    worth = {template.first: 1.0, template.second: 0.0}
    worth |= {} if template.tie is None else {template.tie: 0.5}
    worth = {name.strip().lower(): value for name, value in worth.items()}
    name = found.strip().lower() if isinstance(found, str) else ""
    if name not in worth:
        raise ValueError(
            f"answered {_short(found)} where the pattern has {' or '.join(map(_short, worth))}"
        )
    return worth[name]


def _last_match(text: str, pattern: str) -> Any:
    """Return the group of the last match; None if the match is without it."""
    found = [match[1] for match in re.finditer(pattern, text)]
    if not found:
        raise ValueError(f"answered {_short(text)}, in which nothing is as the pattern says")
    return found[-1]


def _scaled(value: object, name: str, ends: Sequence[float]) -> float:
    """Return a number of a range as one of [0, 1]."""
    low, high = ends
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"answered {_short(value)} as {name!r}, not a number")
    if not low <= value <= high:
        raise ValueError(
            f"answered {_short(value)} as {name!r}, which is not in [{low:g}, {high:g}]"
        )
    return float((value - low) / (high - low))


def _short(value: object) -> str:
    return printable(shown(value, 80))
