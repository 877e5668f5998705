"""docs/algorithms.md names every key of every algorithm, with its default, and every algorithm."""

import re

import pytest

from digen_core.algorithms import ALGORITHMS as CONFIGS
from support.paths import ROOT

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
SETTINGS = PAGE[PAGE.index("## Settings") : PAGE.index("Keys of other tables")]
ROWS = {
    key: [cell.strip() for cell in cells.split("|")]
    for key, cells in re.findall(r"^\| `(\w+)` \| (.*) \|$", SETTINGS, re.MULTILINE)
}
GROUPS = {
    "all": set(CONFIGS),
    "ratios": {name for name, config in CONFIGS.items() if not config.trains_clean},
    "first steps": {"flow_grpo", "grpo_guard", "flow_dppo", "ddpo", "longcat"},
}
SCALING = {"advantage_scale", "advantage_ddof", "trimmed_ratio", "mix"}
UNUSED = {  # and refused
    "ddpo": SCALING,
    "dpo": {*SCALING, "advantage_eps", "max_advantage"},
}


def owners(cell: str) -> set[str]:
    """Return the algorithms that a row is for."""
    named = set(re.findall(r"`(\w+)`", cell))
    if cell.startswith("all but"):
        return set(CONFIGS) - named
    return named.union(*(GROUPS.get(part, set()) for part in cell.split(", ")))


def default_of(key: str, algorithm: str) -> str:
    """Return what a row says the default is: what follows the algorithm's name, or the first."""
    cell = ROWS[key][1].removesuffix(": all samples")
    first, *others = cell.split(";")
    for other in others:
        *names, value = re.findall(r"[^\s,`]+", other)
        if algorithm in names:
            return value
    return first.strip("` ")


def test_every_algorithm_has_a_section():
    for name in CONFIGS:
        assert f'`algorithm.type = "{name}"`' in PAGE


def test_no_row_is_of_a_key_that_is_not_there():
    assert set(ROWS) == {key for config in CONFIGS.values() for key in config.model_fields} - {
        "type"
    }


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_every_key_is_there_with_its_default(algorithm):
    fields = CONFIGS[algorithm].model_fields
    for key in fields.keys() - {"type"} - UNUSED.get(algorithm, set()):
        assert algorithm in owners(ROWS[key][0]), key
        default, said = fields[key].default, default_of(key, algorithm)
        if isinstance(default, bool) or default is None:
            assert said == {True: "true", False: "false", None: "null"}[default], key
        elif isinstance(default, int | float):
            assert float(said) == default, key
        else:
            assert said == (default if isinstance(default, str) else str(list(default))), key
    for key, (of, *_) in ROWS.items():
        assert key in fields or algorithm not in owners(of), key
