"""What pages print: commands, what these answer, and files.

A command stands in a code block, or in prose between backquotes. In a block with lines that begin
with ``$ `` these are the commands and the others their answers; else each line is one whose first
word is a program. ``<!-- file: NAME -->`` makes the block after it a file; several make one.
"""

import re
import shlex
from dataclasses import dataclass
from itertools import groupby

from support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = (
    "apt-get|bash|dask|digen|docker|hf|kubectl|make|mlflow|pip|prefect|python3?|source|ssh|uv"
)
_START = re.compile(rf"(?:\w+=\S+ )*(?:\.venv/bin/)?(?:{PROGRAMS}|set -a;)(?= |$)")
_BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n+)?"
    r"(?:^```(?P<language>\w*)\n(?P<fenced>(?s:.*?))^```$"
    r"|(?P<indented>(?:^(?: {4}|\t).*\n|^\n(?= {4}))+))",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Printed:
    """A command line as a page prints it."""

    line: int
    text: str
    answer: str = ""  # the lines that it prints, as one
    is_mention: bool = False  # in prose, so arguments may be left out

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True)
class Page:
    """The commands of a page in their order, and the files that it prints."""

    commands: list[Printed]
    files: dict[str, str]


def read_page(text: str) -> Page:
    """Take a page apart."""
    commands: list[Printed] = []
    files: dict[str, str] = {}
    for block in _BLOCK.finditer(text):
        code = block["fenced"] or _without_indent(block["indented"] or "")
        if block["file"]:
            files[block["file"]] = files.get(block["file"], "") + code + "\n"
        elif not block["language"]:
            start = block.start("fenced" if block["fenced"] else "indented")
            start += len(text[start:]) - len(text[start:].lstrip("\n"))
            commands += _commands_of(code, 1 + text.count("\n", 0, start))
    prose = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for mention in re.finditer(r"`([^`]+)`", prose):
        words = " ".join(mention[1].split())
        if _START.match(words) and " " in words:
            line = 1 + prose.count("\n", 0, mention.start())
            commands.append(Printed(line, words, is_mention=True))
    return Page(sorted(commands, key=lambda command: command.line), files)


def _without_indent(code: str) -> str:
    lines = code.splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip()) if code else 0
    return "\n".join(line[margin:] for line in lines).strip("\n") + "\n"


def _commands_of(code: str, first: int) -> list[Printed]:
    """Return the commands of a block that begins on line ``first``."""
    lines = _joined(code, first)
    if not any(text.startswith("$ ") for _, text in lines):
        return [Printed(number, text) for number, text in lines if _START.match(text)]
    found = []
    keys = [sum(t.startswith("$ ") for _, t in lines[: i + 1]) for i in range(len(lines))]
    for _, group in groupby(zip(keys, lines, strict=True), key=lambda pair: pair[0]):
        (_, (number, text)), *answer = group
        said = " ".join(line for _, (_, line) in answer)
        found.append(Printed(number, text.removeprefix("$ "), " ".join(said.split())))
    return found


def _joined(code: str, first: int) -> list[tuple[int, str]]:
    """Return the lines with their numbers; those that end with a backslash with the next."""
    joined, start = [], None
    for number, line in enumerate(code.splitlines(), first):
        text = f"{joined.pop()[1].rstrip(' ' + chr(92))} {line.strip()}" if start else line
        joined.append((start or number, text))
        start = (start or number) if line.endswith("\\") else None
    return joined


def parts_of(text: str) -> list[list[str]]:
    """Split a command line at ``;``, ``|``, ``&`` and ``>`` into lists of words; comments go.

    The sign before a part, if it has one, is its first word.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";|&>"):
            parts.append([word])
        else:
            parts[-1].append(word)
    return parts
