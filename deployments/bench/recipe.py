"""The whole recipe on a tiny model of its family: does the evaluation's reward rise?

What makes a recipe is kept: algorithm and coefficients, transition and noise, steps and which of
them are trained, guidance, updates and how samples are dealt, optimizer, adapters, average, and how
rewards are mixed. Smaller are the model, its pixels and frames, prompts and groups. In place of
scorers, whose models are not here, stands the warmth of the pixels, which anybody can check.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from itertools import count
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from deployments.bench.runs import prompt_rewards
from deployments.levels import TARGET, Proof, digest_of, proof_file
from deployments.views.terminal import terminal
from digen_core.config.families import FAMILIES
from digen_core.config.load import load_config
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, train_prompts
from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object
from digen_core.maths.statistics import paired_change, standard_error, with_error
from digen_core.models.image_size import read_settings
from digen_core.models.loading import load_trainable
from digen_core.models.policy import ALL_PARTS
from digen_core.models.tiny.pipelines import build_tiny
from digen_core.models.trainable import initial_weights
from digen_core.planning.model_settings import settings_folder
from digen_core.reference.loop import post_train_serially
from digen_core.rewards import reward_functions
from digen_core.rewards.scoring import RewardFn

KEPT_REWARDS: Final = ("motion", "jpeg_compressibility", "jpeg_incompressibility")  # need no model
STAND_IN: Final = "warmth"

GROUP: Final = 6  # of 4 x 6 samples each of 1, 2, 3 or 4 updates has as many
NUM_STEPS: Final = 6  # most windows and tails fit
SMALLER: Final = {
    "model.dtype": "float32",
    "model.device": "cpu",
    "model.compile": False,  # which takes minutes here
    "model.height": 32,
    "model.width": 32,
    "model.max_sequence_length": 24,
    "rollout.prompts_per_iteration": 4,
    "rollout.group_size": GROUP,
    "rollout.fragment_size": GROUP,
    "train.pack_size": GROUP,
    "train.gradient_checkpointing": False,  # the same gradient
    "evaluation.samples_per_prompt": 8,
}


@dataclass(frozen=True)
class Trained:
    """A run of a shrunk recipe."""

    changes: dict[str, Any]  # of the recipe's settings
    before: list[float]  # means of the evaluation prompts
    after: list[float]
    seconds: float

    @property
    def change_error(self) -> float | None:
        """Standard error of the change, of the prompts' differences; None of a single prompt."""
        return paired_change(self.before, self.after, 0.0).error

    @property
    def standard_errors(self) -> float:
        """How many of them the reward has risen; 0 where nothing differs between prompts."""
        risen = fmean(self.after) - fmean(self.before)
        return risen / self.change_error if self.change_error else 0.0


def warmth(images: Tensor, prompts: Any) -> Tensor:
    """Return red minus half of blue, the mean over the pixels of each image, in float64."""
    return (images[:, 0] - images[:, 2] / 2).double().mean(dim=(1, 2))


def changes_of(config: RunConfig, folder: str, iterations: int) -> dict[str, Any]:
    """Return what shrinks a recipe to a tiny model of its family.

    Args:
        config: the recipe.
        folder: of the tiny model.
        iterations: to train.
    """
    changes = {**SMALLER, "model.path": folder, "num_iterations": iterations}
    steps = few_steps(config)
    changes["rollout.num_steps"] = changes["evaluation.num_steps"] = steps
    changes["model.num_frames"] = min(config.model.num_frames, 5)
    if config.algorithm.best_of:
        share = config.algorithm.best_of / config.rollout.group_size
        changes["algorithm.best_of"] = max(2, round(share * GROUP))
    if screening := config.rollout.screening:
        share = screening.candidates / config.rollout.group_size
        changes["rollout.screening.candidates"] = round(share * GROUP)
        if screening.num_steps is not None:
            few = steps * screening.num_steps / config.rollout.num_steps
            changes["rollout.screening.num_steps"] = max(1, round(few))
    if lora := config.train.lora:
        changes["train.lora.rank"] = 4
        changes["train.lora.alpha"] = 4 * lora.alpha / lora.rank  # the same scale
    return changes


def few_steps(config: RunConfig) -> int:
    """Return the steps of a shrunk recipe: more than a few where its algorithm needs them."""
    few = max(min(config.rollout.num_steps, NUM_STEPS), config.algorithm.fewest_steps)
    return next(number for number in count(few) if _is_trained(config, number))


def _is_trained(config: RunConfig, num_steps: int) -> bool:
    """Whether trajectories of so many steps have what the algorithm trains, as the recipe's do."""
    try:
        config.algorithm.check_steps(num_steps)
    except ValueError:
        return False
    return True


def tiny_model(config: RunConfig) -> Any:
    """Return a tiny pipeline of what a recipe is for: one of experts, or that edits, if it does.

    Of those it is one of the published model's own class, where there is one, and with what its
    transformer has.
    """
    model = config.model
    kinds = ("", *FAMILIES[model.family].kinds)
    made = [build_tiny(model.family, kind=kind) for kind in kinds]
    taken = [pipeline for pipeline in made if _is_taken(model, pipeline)]
    own = _class_of(model.path)
    alike = [pipeline for pipeline in taken if type(pipeline).__name__ == own] or taken
    _, published = read_settings(settings_folder(model.path))
    return max(alike, key=lambda pipeline: _shared(pipeline.transformer.config, published))


def _shared(tiny: Mapping[str, Any], published: Mapping[str, Any]) -> int:
    """Return how many things a published transformer has, or has not, as a tiny one."""
    has = {name: value for name, value in tiny.items() if isinstance(value, bool)}
    return sum(value is published.get(name) for name, value in has.items())


def _class_of(path: str) -> object:
    """Return which pipeline a published model is, if its index is here."""
    index = settings_folder(path) / "model_index.json"
    return read_json_object(index, "the model's").get("_class_name") if index.exists() else None


def _is_taken(model: ModelConfig, pipeline: Any) -> bool:
    has_two = pipeline.config.get("boundary_ratio") is not None
    try:
        model.require_pipeline({**pipeline.config, "_class_name": type(pipeline).__name__})
    except ConfigError:
        return False
    return has_two == (model.guidance_scale_2 is not None)


def train_shrunk(path: Path, iterations: int, settings: Mapping[str, Any] | None = None) -> Trained:
    """Train a recipe on a tiny model of its family, and evaluate before and after.

    Args:
        path: of the recipe.
        iterations: to train.
        settings: that are changed, too.
    """
    began = monotonic()
    recipe = load_config(path, dict(settings or {}))
    with TemporaryDirectory() as folder:
        tiny_model(recipe).save_pretrained(folder)
        changes = changes_of(recipe, folder, iterations) | dict(settings or {})
        config = load_config(path, changes)
        policy = load_trainable(config, ALL_PARTS)
        rewards = rewards_of(config, policy.device)
        first = initial_weights(policy, config.train.lora, seed=config.seed)
        prompts = evaluation_prompts(config)
        before = prompt_rewards(config, policy, first, prompts, rewards)
        run = post_train_serially(config, policy, train_prompts(config), rewards)
        after = prompt_rewards(config, policy, run.ema, prompts, rewards)
    del changes["model.path"]
    return Trained(changes, before, after, monotonic() - began)


def _judges(config: RunConfig) -> str:
    """What a shrunk recipe is judged by, in words."""
    kinds = {one.type if one.type in KEPT_REWARDS else STAND_IN for one in config.rewards.values()}
    return " and ".join(sorted(kinds))


def rewards_of(config: RunConfig, device: torch.device) -> dict[str, RewardFn]:
    """Return the recipe's rewards that need no model, and the stand-in for each of the others."""
    kept = {name: one for name, one in config.rewards.items() if one.type in KEPT_REWARDS}
    found = reward_functions(kept, device)
    return {name: found.get(name, warmth) for name in config.rewards}


def main(path: Path, iterations: int, settings: Mapping[str, Any], *, write: bool) -> bool:
    """Train a shrunk recipe and print what was reached; return whether that is the target.

    Args:
        path: of the recipe.
        iterations: to train.
        settings: that are changed, too.
        write: whether to keep what was reached as the recipe's artifact, if it is the target.
    """
    disable_progress_bar()
    console = terminal()
    trained = train_shrunk(path, iterations, settings)
    reached = trained.standard_errors >= TARGET
    console.print(
        f"{path.stem}: {_judges(load_config(path))} of {len(trained.after)} prompts "
        f"{_mean(trained.before)} -> {_mean(trained.after)}, a change of "
        f"{trained.standard_errors:.1f} standard errors in {trained.seconds:.0f} s; the target of "
        f"{TARGET:g} is {'reached' if reached else 'not reached'}"
    )
    if reached and write:
        proof = proof_of(path, iterations, trained, settings)
        file = proof_file(path.stem)
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{proof.model_dump_json(indent=2)}\n")
        console.print(f"written: {file.name} in {file.parent.name}")
    return reached


def _mean(means: list[float]) -> str:
    """The mean of some prompts' means, with its standard error."""
    return with_error(f"{fmean(means):.5f}", standard_error(means), ".5f", "+-")


def proof_of(path: Path, iterations: int, trained: Trained, settings: Mapping[str, Any]) -> Proof:
    """Return what a run has shown of a recipe that reached the target."""
    options = "".join(f" --{key.replace('_', '-')} {value}" for key, value in settings.items())
    return Proof(
        level="T",
        recipe=path.stem,
        settings=digest_of(path),
        date=date.today(),
        command=f"digen bench recipe {path.stem} --iterations {iterations}{options} --write",
        reward=_judges(load_config(path)),
        changes=trained.changes,
        before=fmean(trained.before),
        before_error=standard_error(trained.before),
        after=fmean(trained.after),
        after_error=standard_error(trained.after),
        change_error=trained.change_error,
        prompts=len(trained.after),
        seconds=round(trained.seconds, 1),
        machine=f"{torch.get_num_threads()} CPU threads",
    )
