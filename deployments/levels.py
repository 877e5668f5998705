"""How far each recipe is verified: what an artifact in ``configs/levels`` shows, and no more.

- ``V``: it has learnt on a real model, with its curve and its seconds.
- ``T``: the whole recipe, on a tiny model of its family, has reached its target.
- ``D``: a dry run: it loads, its inputs are checked, and it trains a tiny model for an iteration,
  as a test does in every change. Every recipe has this.

An artifact counts for the settings that it was made with: after a change of the recipe's algorithm,
rollout, training or model it counts no longer, until it is made again.
"""

import tomllib
from datetime import date
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from deployments.shipped import CONFIGS
from digen_core.strict import Strict

LEVELS: Final = CONFIGS / "levels"
TARGET: Final = 5.0
"""Standard errors of the paired change by which the evaluation's reward must have risen."""

LEGEND: Final = (
    "levels: V learnt on a real model; T the whole recipe on a tiny model of its family reached "
    "its target; D dry run (docs/recipes.md)"
)
_COMPARED: Final = ("model", "rollout", "algorithm", "train")  # the tables that make the recipe


class Proof(Strict):
    """What a run has shown of a recipe."""

    level: Literal["V", "T"]
    """On a real model, or on a tiny one."""

    recipe: str
    """Its name."""

    settings: str
    """Digest of the recipe's settings that the run had."""

    date: date
    """Day of the run."""

    command: str
    """That made it."""

    reward: str
    """That stood for the recipe's scorers; the recipe's own with V."""

    changes: dict[str, Any]
    """Settings of the run that are not the recipe's."""

    before: float
    """Mean reward of the evaluation prompts before training."""

    before_error: float
    """Its standard error, over prompts."""

    after: float
    """The mean after training."""

    after_error: float
    """Its standard error."""

    change_error: float = Field(gt=0)
    """Standard error of the change: of the prompts' differences."""

    prompts: int = Field(ge=2)
    """Of the evaluation."""

    seconds: float = Field(gt=0)
    """Of the whole run, with both evaluations."""

    machine: str
    """What it ran on."""

    @property
    def standard_errors(self) -> float:
        """How many standard errors the reward has risen."""
        return (self.after - self.before) / self.change_error


def digest_of(recipe: Path) -> str:
    """Return 16 hex digits of those settings of a recipe that an artifact is about."""
    tree = tomllib.loads(recipe.read_text())
    kept = {name: tree.get(name, {}) for name in _COMPARED}
    return sha256(dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def proof_file(name: str) -> Path:
    """Return where the artifact of a recipe lies, or would."""
    return LEVELS / f"{name}.json"


def proof_of(recipe: Path) -> Proof | None:
    """Return what is shown of a recipe as it is; None if nothing is."""
    file = proof_file(recipe.stem)
    if not file.exists():
        return None
    proof = Proof.model_validate_json(file.read_text())
    reached = proof.recipe == recipe.stem and proof.standard_errors >= TARGET
    return proof if reached and proof.settings == digest_of(recipe) else None


def level_of(recipe: Path) -> str:
    """Return the level of a recipe: V, T or D."""
    proof = proof_of(recipe)
    return proof.level if proof else "D"
