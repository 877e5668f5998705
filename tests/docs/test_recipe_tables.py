"""The tables at the heads of the recipes: each row is true of the file, or says why it differs."""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from math import hypot
from typing import Any

import pytest

from deployments.shipped import recipe_files
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig

FILES = {path.stem: path for path in recipe_files()}
NOTHING = "-"  # ours, of what digen has no key for
WORDS = {"True": True, "False": False, "None": None, "null": None}

COVERED = (
    *("model.path", "model.height", "model.width", "model.dtype", "model.guidance_scale"),
    *("rollout.num_steps", "rollout.noise_level", "rollout.prompts_per_iteration"),
    *("rollout.group_size", "train.updates_per_iteration", "train.learning_rate"),
    *("train.weight_decay", "train.betas", "train.adam_eps", "train.max_grad_norm"),
    *("algorithm.max_advantage", "algorithm.kl_coefficient", "algorithm.advantage_scale"),
    *("train.ema_decay", "prompts.train", "num_iterations", "seed", "evaluation.every"),
    *("evaluation.num_steps", "evaluation.samples_per_prompt"),
)
STEPS = ("trained_fraction", "window", "window_size", "num_levels")  # one of them is trained by


@dataclass
class Row:
    """A published setting, what it is here, and why if it differs."""

    cells: list[str] = field(default_factory=lambda: ["", "", ""])
    why: str = ""

    def add(self, cells: list[str]) -> None:
        """Take the next line of the row; a name that is cut after a slash goes on."""
        self.cells = [
            joined(before, after) for before, after in zip(self.cells, cells, strict=True)
        ]

    @property
    def published(self) -> Any:
        """Its value, in the words of ours: what follows the last arrow or sign of equality."""
        return value_of(re.split(r"-> |= ", self.cells[1])[-1].strip())

    @property
    def ours(self) -> tuple[str, Any]:
        """The key and the value."""
        key, _, text = self.cells[2].partition(" = ")
        value = tomllib.loads(f"value = {text}")["value"]
        return key, None if value == "null" else value


def joined(before: str, after: str) -> str:
    between = "" if not before or not after or before.endswith("/") else " "
    return before + between + after


def value_of(text: str) -> Any:
    """The value that a cell writes: a number or a list as in TOML, a word, or text."""
    if text in WORDS:
        return WORDS[text]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@cache
def rows_of(name: str) -> list[Row]:
    """The rows of the table at the head of a recipe."""
    head = FILES[name].read_text().partition("\nname = ")[0].splitlines()
    lines = head[next(i for i, line in enumerate(head) if line.startswith("# published ")) + 2 :]
    rows: list[Row] = []
    for line in lines:
        if found := re.fullmatch(r"#   (?:why: |     )(\S.*)", line):
            rows[-1].why = joined(rows[-1].why, found[1])
            continue
        cells = [cell.strip() for cell in line.removeprefix("#").split(" |")]
        assert len(cells) == 3, line
        if cells[0] and not (rows and is_open(rows[-1])):
            rows.append(Row())
        rows[-1].add(cells)
    return rows


def is_open(row: Row) -> bool:
    return row.cells[2].endswith(" =") or row.cells[2].count("[") != row.cells[2].count("]")


def at(config: RunConfig, key: str) -> Any:
    """What a config has at a key, as TOML has it."""
    found: Any = config.model_dump(mode="json")
    for part in key.split("."):
        found = found[part]
    return found


def same(published: Any, ours: Any) -> bool:
    """Whether they are the same; names that are listed are in any order."""
    if isinstance(ours, list) and isinstance(published, str):
        return sorted(published.split(", ")) == sorted(ours)
    return published == ours and isinstance(published, bool) == isinstance(ours, bool)


@pytest.fixture(params=FILES)
def recipe(request) -> str:
    return request.param


def test_ours_is_what_the_file_has(recipe):
    config = load_config(FILES[recipe])
    for row in rows_of(recipe):
        if row.cells[2] != NOTHING:
            key, value = row.ours
            assert at(config, key) == value, row


def test_what_differs_says_why_and_nothing_else_does(recipe):
    for row in rows_of(recipe):
        is_same = row.cells[2] != NOTHING and same(row.published, row.ours[1])
        assert is_same != bool(row.why), row


def test_of_several_rewards_it_stands_there_that_gdpo_divides_their_sum(recipe):
    rows, rewards = rows_of(recipe), load_config(FILES[recipe]).reward_weights
    if len(rewards) > 1 and any("gdpo" in row.cells[1] for row in rows):
        (row,) = (row for row in rows if row.cells[0] == "std of the weighted sum")
        assert f"that std is {hypot(*rewards.values()):.2f}" in row.why


def test_arithmetic_of_a_cell_is_right(recipe):
    for row in rows_of(recipe):
        if found := re.fullmatch(r"([\d.]+(?: [A-Za-z]+)? [x/^] .*) = ([\d.]+)", row.cells[1]):
            sum_ = re.sub(r" [A-Za-z]+(?= |$)", "", found[1].replace(" x ", " * "))
            value = eval(sum_.replace("^", "**"), {"__builtins__": {}})
            assert value == pytest.approx(float(found[2]), rel=0.01), row


def test_an_average_that_is_stepped_after_each_batch_says_so(recipe):
    """As FlowGRPO's code and DGPO's do; DiffusionNFT's steps it after each update."""
    cells = {row.cells[0]: row.cells[1] for row in rows_of(recipe)}
    if cells.get("update_step_interval") == "8":
        (batches,) = re.findall(r" batches / (\d+) = ", cells["updates of an epoch"])
        stepped = "" if batches == "1" else f" ^ {batches} = "
        assert cells["EMAModuleWrapper decay"].startswith(f"0.9{stepped}")


def test_a_table_covers_what_a_run_depends_on(recipe):
    config, rows = load_config(FILES[recipe]), rows_of(recipe)
    keys = [row.ours[0] for row in rows if row.cells[2] != NOTHING]
    assert len(keys) == len(set(keys))
    wanted = set(COVERED)
    wanted |= {f"rewards.{name}.weight" for name in config.rewards}
    wanted |= {"algorithm.clip_range"} & {f"algorithm.{key}" for key in vars(config.algorithm)}
    wanted |= {"model.num_frames"} if config.model.num_frames > 1 else set()
    wanted |= {"train.ema_every"} if config.train.ema_decay else set()
    parts = ("rank", "alpha", "targets", "init")
    wanted |= {f"train.lora.{part}" for part in parts} if config.train.lora else {"train.lora"}
    assert not wanted - set(keys)
    assert any(f"algorithm.{step}" in keys for step in STEPS)
