"""``digen init``: a config from a few answers, checked as a run's is before anything is written."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from digen_core.algorithms import DEFAULT
from digen_core.config.load import config_of_tree
from digen_core.config.model import EMBEDDED
from digen_core.config.toml import literal
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.transport.files import replace_text

HELD_OUT: Final = 0.1
"""Fraction of the prompts that evaluations keep where no file of theirs is given."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a new config is made of."""

    name: str
    family: str
    model: str
    prompts: str
    evaluation: str | None
    rewards: tuple[str, ...]
    gpus: int
    size: tuple[int, ...] = ()
    """Height, width and, of videos, frames; empty: those that the model is used with."""


Tree = dict[str, Any]


def tree_of(answers: Answers) -> Tree:
    """Return the keys of the config, by table; all others keep their defaults."""
    small = answers.model == EMBEDDED
    prompts: Tree = {"train": answers.prompts}
    if answers.evaluation is not None:
        prompts["evaluation"] = answers.evaluation
    else:
        prompts["evaluation_fraction"] = HELD_OUT
    layout = "elastic" if answers.gpus == 0 else "colocated" if answers.gpus == 1 else "auto"
    tree: Tree = {
        "name": answers.name,
        "num_iterations": 100,
        "model": {
            "family": answers.family,
            "path": answers.model,
            "dtype": "float32" if small or answers.gpus == 0 else "bfloat16",
            **dict(zip(("height", "width", "num_frames"), answers.size, strict=False)),
        },
        "prompts": prompts,
        "rewards": dict.fromkeys(answers.rewards, 1.0),
        "algorithm": {"type": DEFAULT},
        "train": {"learning_rate": 1.2e-3 if small else 3e-4, "lora": {"rank": 32, "alpha": 64.0}},
        "schedule": {"layout": layout},
    }
    if answers.gpus == 1:  # one worker, so that the GPU holds one model
        tree["cluster"] = {"trainer_workers": 0}
    return tree


def text_of(tree: Mapping[str, Any]) -> str:
    """Return the config file, with a line on how to learn more."""
    lines = [
        "# Made by 'digen init'. Keys that are not here keep their defaults: 'digen config show'"
    ]
    lines += ["# with this file prints all of them with their meanings.", ""]
    lines += list(_lines(tree, ""))
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any], prefix: str) -> Sequence[str]:
    values = [f"{_key(k)} = {literal(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    for name, inner in table.items():
        if isinstance(inner, Mapping):
            values += ["", f"[{prefix}{_key(name)}]", *_lines(inner, f"{prefix}{_key(name)}.")]
    return values


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else literal(name)


def cluster_text(answers: Answers) -> str:
    """Return the file of a cluster with the GPUs of this machine, a worker each."""
    here = f"{number_of(answers.gpus, 'GPU')} of this machine"
    lines = [f"description = {literal(here)}", ""]
    lines += ["[[devices]]", 'kind = "gpu"', f"count = {answers.gpus}", "cuda = true"]
    return "\n".join(lines) + "\n"


def write_config(path: Path, answers: Answers) -> list[Path]:
    """Check a new config as a run's is, and write it, with a cluster file for several GPUs.

    Raises:
        UserError: a file is there already or cannot be written, or a run would be refused.
    """
    files = {path: text_of(tree_of(answers))}
    if answers.gpus > 1:
        files[path.with_name(f"{path.stem}-cluster.toml")] = cluster_text(answers)
    for target in files:
        if target.exists():
            raise UserError(f"{target} is there already; name another file, or remove it")

    from digen_core.preflight.run import check_inputs

    check_inputs(config_of_tree(tree_of(answers), str(path)))
    for target, text in files.items():
        try:
            replace_text(target, text)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror}") from error
    return list(files)


def name_of(path: Path) -> str:
    """Return the name of a config's runs: that of its file, in letters that names have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-_.")[:100] or "run"


def size_of(text: str | None) -> tuple[int, ...]:
    """Return the sizes in HEIGHTxWIDTH or HEIGHTxWIDTHxFRAMES; none of None.

    Raises:
        UserError: it is neither.
    """
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,6}x\d{1,6}(x\d{1,6})?", text, re.ASCII):
        raise UserError(f"--size is {text}; use HEIGHTxWIDTH such as 512x512, of videos 480x832x81")
    return tuple(map(int, text.split("x")))


def ask(question: str, default: str, option: str) -> str:
    """Ask a person; where nobody can answer, the default is taken.

    Raises:
        UserError: there is no default, and nobody to ask.
    """
    if sys.stdin.isatty():
        from rich.prompt import Prompt

        if default:
            return Prompt.ask(question, default=default)
        while not (answer := Prompt.ask(question).strip()):
            continue
        return answer
    if not default:
        raise UserError(f"{question}? There is nobody to ask here; say so by {option}")
    return default
