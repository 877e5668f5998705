"""What can be known to be wrong with the rewards of a config before anything starts.

Each check raises ConfigError with one line: what is wrong, its value, and what to do.
"""

from collections.abc import Callable
from pathlib import Path

from digen_core.config import ConfigError, RunConfig
from digen_core.hub import is_hub_id
from digen_core.reward_config import AestheticConfig, ClipConfig, FunctionConfig, RewardConfig


def check_rewards(config: RunConfig, train: list[str], evaluation: list[str]) -> None:
    """Check that every reward can be made and can judge every prompt, without loading models.

    Args:
        config: of the run.
        train: prompts of `prompts.train`.
        evaluation: prompts of `prompts.evaluation`.

    Raises:
        ConfigError: one cannot; the message is one line.
    """
    files = {config.prompts.train: train, config.prompts.evaluation: evaluation}
    types = {reward.type for reward in config.rewards.values()}
    if "shapes" in types:
        _check_shapes_prompts(files)
    if "ocr" in types:
        _check_quoted_texts(files)
    for name, reward in config.rewards.items():
        _check_frames(name, reward, config)
        _check_files(name, reward)
        if isinstance(reward, FunctionConfig):
            _check_function(reward)


def _check_frames(name: str, reward: RewardConfig, config: RunConfig) -> None:
    """Check that a reward that takes videos gets some."""
    if reward.takes == "videos" and config.model.num_frames == 1:
        raise ConfigError(
            f"the reward {name!r} takes videos, but model.num_frames is 1; use several frames "
            "(1 + a multiple of 4) of a video family, or another reward"
        )


def _check_shapes_prompts(files: dict[str, list[str]]) -> None:
    """Check that the reward ``shapes`` can judge every prompt, and that no scene is in both files.

    A scene has several wordings, so comparing the prompts alone is not enough.
    """
    from digen_core.worlds.shapes import Scene, parse_prompt

    found: dict[Scene, tuple[str, str]] = {}
    for path, prompts in files.items():
        _check_prompts("shapes", path, prompts, parse_prompt)
        for prompt in prompts:
            known, other = found.setdefault(parse_prompt(prompt), (path, prompt))
            if known != path:
                raise ConfigError(
                    f"the evaluation prompt {prompt!r} asks for the same as the train prompt "
                    f"{other!r}; keep one of them"
                )


def _check_quoted_texts(files: dict[str, list[str]]) -> None:
    from digen_core.rewards.ocr import quoted_text

    for path, prompts in files.items():
        _check_prompts("ocr", path, prompts, quoted_text)


def _check_prompts(
    kind: str, path: str, prompts: list[str], parse: Callable[[str], object]
) -> None:
    for prompt in prompts:
        try:
            parse(prompt)
        except ValueError as error:
            raise ConfigError(
                f"{path} line {_line_of(path, prompt)} is not for the reward {kind!r}: {error}"
            ) from error


def _line_of(path: str, prompt: str) -> int:
    """Return the 1-based number of the line that holds a prompt."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return 1 + [line.strip() for line in lines].index(prompt)


def _check_files(name: str, reward: RewardConfig) -> None:
    """Check that local folders and files are there; hub ids are left to the loading."""
    if isinstance(reward, ClipConfig):
        for key, path in (("path", reward.path), ("processor", reward.processor_path)):
            if not Path(path).is_dir() and not is_hub_id(path):
                raise ConfigError(
                    f"rewards.{name}.{key} {path} is neither a folder (seen from {Path.cwd()}) nor "
                    "a hub id such as org/name; correct it"
                )
    if isinstance(reward, AestheticConfig) and not Path(reward.head).is_file():
        raise ConfigError(
            f"rewards.{name}.head {reward.head} is no file (seen from {Path.cwd()}); give the "
            "safetensors file of the predictor's layers"
        )


def _check_function(reward: FunctionConfig) -> None:
    """Check that a function or class of the user's can be imported."""
    from digen_core.rewards.own import import_reward

    try:
        found = import_reward(reward.function)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; it must be installed, or its folder be in PYTHONPATH"
        ) from error
    except Exception as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"rewards: importing {reward.function!r} raised {type(error).__name__}: {error}"
        ) from error
    if reward.options and not isinstance(found, type):
        raise ConfigError(
            f"rewards: {reward.function!r} is a function, but has the options {reward.options}; "
            "only a class takes them"
        )
