"""Probing rewards: each is called once on two made-up samples, so that a broken one shows at once.

To one that sees groups they are a group, of one prompt.

Rewards that are quick to make are probed before anything starts, in the process that starts a run:
functions of the user's, servers, and what comes with digen and loads no model. Those that load a
model, and classes of the user's, which may, are probed by the workers that have loaded them. So are
those that take latents, whose shape the loaded model tells, and on a running cluster all, as its
machines may have what this one has not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from digen_core.config.rewards import CalledConfig, called
from digen_core.config.rewards.own import FunctionConfig
from digen_core.config.run import RunConfig
from digen_core.config.size import Size
from digen_core.data.prompts import Prompt, evaluation_prompts, train_prompts
from digen_core.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to import: mistakes in a config are reported before
    import torch

    from digen_core.rewards.scoring import RewardFn

NUM_SAMPLES: Final = 2

_QUICK: Final = frozenset(
    (
        "shapes",
        "shapes_edit",
        "jpeg_compressibility",
        "jpeg_incompressibility",
        "motion",
        "temporal_flickering",
        "ocr",
        "remote",
        "judge",
        "dpg",
        "judged_kinds",
        "pairwise",
    )
)

_probed: set[str] = set()  # configs that this process has been through


def probed_here(config: RunConfig) -> dict[str, CalledConfig]:
    """Return the rewards that are probed in the process that starts the run."""
    if config.cluster.address is not None:
        return {}
    rewards = called(config.rewards)
    return {name: reward for name, reward in rewards.items() if _is_quick(reward)}


def probed_by_workers(config: RunConfig, pool: str | None) -> dict[str, CalledConfig]:
    """Return the rewards of a pool, or of the devices that generate, that their workers probe."""
    here = probed_here(config)
    return {name: own for name, own in config.rewards_of(pool).items() if name not in here}


def probe_before_start(
    config: RunConfig, warn: Callable[[str], None], *, is_evaluation: bool = False
) -> None:
    """Probe what this process can; it does so once for a config.

    Args:
        config: of a run that the other checks have passed.
        warn: is called with what a reward does wrong whose failure does not end the run.
        is_evaluation: whether nothing is trained: what compares samples of a group is not asked.

    Raises:
        ConfigError: a reward fails; the message is one line.
    """
    rewards, key = probed_here(config), config.model_dump_json()
    if is_evaluation:
        rewards = {name: reward for name, reward in rewards.items() if reward.sees == "samples"}
    if not rewards or key in _probed:
        return
    from digen_core.models.policy import resolve_device
    from digen_core.rewards import reward_functions

    device = resolve_device(config.model.device)
    prompts = (evaluation_prompts if is_evaluation else train_prompts)(config)[:NUM_SAMPLES]
    functions = reward_functions(rewards, device)
    probe(functions, rewards, config.model.size, prompts, device, warn)
    _probed.add(key)


def probe(
    functions: "Mapping[str, RewardFn]",
    rewards: Mapping[str, CalledConfig],
    size: Size,
    prompts: Sequence[Prompt],
    device: "torch.device",
    warn: Callable[[str], None],
    latents: "torch.Tensor | None" = None,
) -> None:
    """Call each reward once on two grey samples, or on two made-up latents.

    Args:
        functions: of the rewards, by name.
        rewards: their configs.
        size: of the samples.
        prompts: of the run, one or more.
        device: where the samples are.
        warn: is called with what a reward does wrong whose failure does not end the run.
        latents: [2, C, h, w] or [2, C, f, h, w], for rewards that take these.

    Raises:
        ConfigError: a reward fails that may not.
    """
    from digen_core.inputs.reading import shown as text_of
    from digen_core.rewards.asked import Asked
    from digen_core.rewards.scoring import RewardError, score_images

    samples = grey_samples(size, device)
    several, same = (list(prompts) * NUM_SAMPLES)[:NUM_SAMPLES], list(prompts[:1]) * NUM_SAMPLES
    asked_of = {
        "samples": Asked.of(several, size, device),
        "groups": Asked.of(same, size, device),
    }
    for name, function in functions.items():
        asked = asked_of[rewards[name].sees]
        strict = rewards[name].model_copy(update={"on_failure": "fail"})
        try:
            score_images({name: function}, {name: strict}, samples, *asked, latents=latents)
        except RewardError as error:
            shown = _described(size)
            if strict.takes == "latents" and latents is not None:
                shown = f"noise in place of two latents, {list(latents.shape[1:])},"
            what = f"{error}; it was tried on {shown} for {text_of(asked.prompts[0])}"
            if rewards[name].on_failure == "fail":
                raise ConfigError(what) from error
            warn(what)


def grey_samples(size: Size, device: "torch.device") -> "torch.Tensor":
    """Return two images [2, 3, H, W], or videos [2, F, 3, H, W], in [0, 1].

    They are grey with a little noise, the same each time: what is constant has no contrast, by
    which a sound reward may divide.
    """
    import torch

    height, width, frames = size
    shape = (NUM_SAMPLES, *([frames] if frames > 1 else []), 3, height, width)
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return (0.45 + 0.1 * noise).to(device)


def _described(size: Size) -> str:
    height, width, frames = size
    videos = f"videos of {frames} frames, " if frames > 1 else "images, "
    return f"two grey {videos}{width} x {height}"


def _is_quick(reward: CalledConfig) -> bool:
    """Say whether a reward can be made, and shown what it takes, in no time."""
    if not isinstance(reward, FunctionConfig):
        return reward.type in _QUICK
    if reward.takes == "latents":
        return False
    from digen_core.rewards.own import import_reward

    return not isinstance(import_reward(reward.function), type)
