"""Damaged documents: valid ones with other bytes, values and keys than they should have."""

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

_EDGES = [
    0,
    -1,
    1,
    2**31,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    " ",
    "\0",
    "a\nb",
    "../x",
    "/",
    "NaN",
    "[red]",
    "\u202e",
    None,
    True,
    [],
    {},
    [[]],
    {"": {}},
]
_LONG = [
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"9" * 5000,
    b"\n" * 10_000,
    b"\xef\xbb\xbf",
    b"\0" * 64,
]
VALUES = st.one_of(
    st.sampled_from(_EDGES),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=6,
    ),
)


def damaged_bytes(documents: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return documents in up to four places of which other bytes stand, or none."""
    inserted = st.binary(max_size=16) | st.sampled_from(_LONG)
    cuts = st.tuples(st.floats(0, 1), st.integers(0, 64), inserted)
    return st.builds(_spliced, st.sampled_from(documents), st.lists(cuts, min_size=1, max_size=4))


def _spliced(document: bytes, cuts: Sequence[tuple[float, int, bytes]]) -> bytes:
    for where, length, instead in cuts:
        first = int(where * len(document))
        document = document[:first] + instead + document[first + length :]
    return document


def damaged_json(documents: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return JSON in which a value is another one, a key is gone, or there is one more."""
    trees = [json.loads(document) for document in documents]
    return st.builds(
        lambda tree, data: json.dumps(_changed(tree, data)).encode(),
        st.sampled_from(trees),
        st.tuples(
            st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6),
            st.sampled_from(["replace", "remove", "add"]),
            VALUES,
        ),
    )


def _changed(tree: Any, how: tuple[Sequence[float], str, Any]) -> Any:
    path, what, value = how
    tree = node = copy.deepcopy(tree)
    for step in path:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            break
        key = keys[int(step * len(keys))]
        if isinstance(node[key], dict | list) and node[key]:
            node = node[key]
            continue
        if what == "remove":
            del node[key]
        else:
            node[key] = value
        return tree
    if isinstance(node, dict) and what == "add":
        node["another"] = value
    return tree


def damaged_toml(documents: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return TOML in which a line's value is another one, or a line is gone or there twice."""
    return st.builds(
        _with_line,
        st.sampled_from(documents),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["replace", "remove", "twice"]),
        VALUES,
    )


def _with_line(document: bytes, where: float, what: str, value: Any) -> bytes:
    lines = document.decode().splitlines()
    number = int(where * len(lines))
    line = lines[number]
    if what == "replace" and "=" in line:
        key = line.partition("=")[0]
        lines[number] = f"{key}= {_toml_of(value)}"
    elif what == "remove":
        del lines[number]
    else:
        lines.insert(number, line)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_of(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).replace("+", "")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_of, value)) + "]"
    return '"null"' if value is None else json.dumps(value)
