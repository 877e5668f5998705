"""Pre-flight checks of the rewards: a config that cannot work fails before anything starts.

Each check raises ConfigError with one line: what is wrong, its value, and what to do.
"""

import inspect
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from digen_core.config.families import FAMILIES
from digen_core.config.rewards import RewardConfig, that_see
from digen_core.config.rewards.clip import ClipScoreConfig
from digen_core.config.rewards.head_template import check_prompt, load_head_template
from digen_core.config.rewards.judge_template import (
    QUESTION,
    PairTemplate,
    Template,
    check_columns,
    load_pair_template,
    load_template,
)
from digen_core.config.rewards.judges import (
    DpgConfig,
    JudgeConfig,
    JudgedKindsConfig,
    PairwiseConfig,
    QuestionsReward,
    VlmReward,
)
from digen_core.config.rewards.own import FunctionConfig
from digen_core.config.rewards.reward_models import HeadConfig
from digen_core.config.rewards.verifiers import (
    BlipVqaConfig,
    DpgBlipConfig,
    GenevalConfig,
    OcrConfig,
    ShapesEditConfig,
)
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import shown
from digen_core.preflight.asked import (
    check_compared_texts,
    check_kinds,
    check_phrases,
    check_prompts,
    check_questions,
    check_wanted_objects,
    check_wanted_texts,
)
from digen_core.preflight.reward_files import check_files


def check_rewards(config: RunConfig, train: list[Prompt], evaluation: list[Prompt]) -> None:
    """Check that every reward can be made and can judge every prompt, without loading models.

    Args:
        config: of the run.
        train: prompts to train on.
        evaluation: prompts for evaluation.

    Raises:
        ConfigError: one cannot; the message is one line.
    """
    if any(reward.type == "shapes" for reward in config.rewards.values()):
        _check_shapes_prompts(train, evaluation)
    for name, reward in config.rewards.items():
        _check_pool(name, reward, config.cluster)
        _check_frames(name, reward, config)
        _check_asked(name, reward, config, [*train, *evaluation])
        check_files(name, reward, here=config.cluster.address is None)
        if isinstance(reward, FunctionConfig):
            _check_function(reward)
        _check_source(name, reward, config)
        if isinstance(reward, ShapesEditConfig):
            _check_edits(config, [*train, *evaluation])


def notes_on_rewards(config: RunConfig) -> list[str]:
    """Return what a person should know of rewards that are as they may be, a line each."""
    if that_see(config.rewards, "samples"):
        return []
    return [
        f"all rewards ({', '.join(config.rewards)}) tell only the samples of a group apart, so no "
        "curve and no evaluation tells whether the model gets better; add one that judges samples "
        "each for itself, with weight = 0 if it is only to be watched"
    ]


def _check_asked(name: str, reward: RewardConfig, config: RunConfig, prompts: list[Prompt]) -> None:
    """Check that prompts, and what comes with them, tell a reward all that it has to know."""
    columns = config.prompts.metadata_columns
    if isinstance(reward, OcrConfig):
        check_wanted_texts(reward, columns, prompts)
    if isinstance(reward, ClipScoreConfig):
        check_compared_texts(name, reward, columns, prompts)
    if isinstance(reward, GenevalConfig):
        check_wanted_objects(name, columns, prompts)
    if isinstance(reward, VlmReward):
        _check_template(name, reward, columns)
    if isinstance(reward, HeadConfig):
        _check_head_template(name, reward)
        check_prompts(name, prompts, lambda prompt: check_prompt(prompt.text))
    _check_questions(name, reward, columns, prompts)


def _check_questions(
    name: str, reward: RewardConfig, columns: Sequence[str], prompts: list[Prompt]
) -> None:
    """Check that prompts come with what questions about their samples are made of."""
    if isinstance(reward, DpgConfig | DpgBlipConfig):
        check_questions(name, columns, prompts)
    if isinstance(reward, JudgedKindsConfig):
        check_kinds(name, columns, prompts)
    if isinstance(reward, BlipVqaConfig):
        check_phrases(name, columns, prompts)


def _check_pool(name: str, reward: RewardConfig, cluster: ClusterConfig) -> None:
    """Check that the run starts workers of a reward's pool, if it starts its workers."""
    if cluster.address is None and reward.pool not in (None, *cluster.reward_workers):
        raise ConfigError(
            f"rewards.{name}.pool is {reward.pool!r}, but the run starts no such workers; set "
            f"cluster.reward_workers.{reward.pool} to their number"
        )


def _check_frames(name: str, reward: RewardConfig, config: RunConfig) -> None:
    """Check that a reward that takes videos gets some, and that one that sees groups takes them."""
    sizes = (config.model.size, *config.model.sizes)
    if reward.takes != "videos":
        is_of_images = reward.takes == "images" and reward.sees == "groups"
        if is_of_images and any(size[2] > 1 for size in sizes):
            raise ConfigError(
                f"rewards.{name} sees groups of samples, which are videos here, but it takes "
                f"images; set rewards.{name}.takes to videos"
            )
        return
    frames = {"model.num_frames": config.model.num_frames}
    frames |= {f"model.sizes[{i}][2]": size[2] for i, size in enumerate(config.model.sizes)}
    family = FAMILIES[config.model.family]
    for key in (key for key, number in frames.items() if number == 1):
        raise ConfigError(
            f"the reward {name!r} takes videos, but {key} is 1; use several frames "
            f"(1 + a multiple of {family.usual_frames}) of a video family, or another reward"
        )


def _check_source(name: str, reward: RewardConfig, config: RunConfig) -> None:
    """Check that a reward of edits gets source images."""
    needs = reward.needs_source
    if isinstance(reward, VlmReward):
        needs = _template_of(reward).source
    if isinstance(reward, FunctionConfig):
        needs = _wants_sources(reward)
    if needs and config.prompts.image_column is None:
        raise ConfigError(
            f"the reward {name!r} judges edits of source images, but the prompts come without; set "
            "prompts.image_column to the column of the images, or use another reward"
        )


def _check_edits(config: RunConfig, prompts: list[Prompt]) -> None:
    """Check that each prompt is an edit of the world ``shapes`` that its image allows."""
    from digen_core.rewards.shapes_edit import verify_edit

    sizes = {size[:2] for size in (config.model.size, *config.model.sizes)}

    def judge(prompt: Prompt) -> None:
        for size in sizes:
            pixels = prompt.images[0].pixels(*size)
            verify_edit(pixels, pixels, prompt.text)

    check_prompts("shapes_edit", prompts, judge)


def _check_shapes_prompts(train: list[Prompt], evaluation: list[Prompt]) -> None:
    """Check that the reward ``shapes`` can judge every prompt, and that no scene is in both sets.

    A scene has several wordings, so comparing the prompts alone is not enough.
    """
    from digen_core.worlds.shapes import Scene, parse_prompt

    found: dict[Scene, tuple[list[Prompt], Prompt]] = {}
    for prompts in (train, evaluation):
        check_prompts("shapes", prompts, lambda prompt: parse_prompt(prompt.text))
        for prompt in prompts:
            known, other = found.setdefault(parse_prompt(prompt.text), (prompts, prompt))
            if known is not prompts:
                raise ConfigError(
                    f"the evaluation prompt {shown(prompt.text)} asks for the same as the train "
                    f"prompt {shown(other.text)}; keep one of them"
                )


def _template_of(reward: VlmReward) -> Template | PairTemplate:
    if isinstance(reward, PairwiseConfig):
        return load_pair_template(reward.template)
    assert isinstance(reward, JudgeConfig | QuestionsReward)
    return load_template(reward.template)


def _check_template(name: str, reward: VlmReward, columns: Sequence[str]) -> None:
    """Check that a template can be read and filled in."""
    try:
        template, own = _template_of(reward), list[str]()
        if isinstance(reward, QuestionsReward):
            own = [QUESTION]
            if QUESTION not in template.columns():
                raise ConfigError(f"{reward.template} asks nothing; put {{{QUESTION}}} into it")
        check_columns(template, [*columns, *own])
    except UserError as error:
        raise ConfigError(f"rewards.{name}.template: {error}") from error


def _check_head_template(name: str, reward: HeadConfig) -> None:
    """Check that the instruction of a reward model can be read and has what it needs."""
    try:
        load_head_template(reward.template, reward.marks)
    except ConfigError as error:
        raise ConfigError(f"rewards.{name}.template: {error}") from error


def _wants_sources(reward: FunctionConfig) -> bool:
    """Say whether a function of the user's cannot be called without source images."""
    from digen_core.rewards.own import call_of, import_reward

    found = import_reward(reward.function)
    called: Any = call_of(reward.function, found) if isinstance(found, type) else found
    with suppress(ValueError):  # it is not written in Python
        taken = inspect.signature(called).parameters
        wanted = [taken[name] for name in ("sources", "more_sources") if name in taken]
        return any(own.default is own.empty for own in wanted)
    return False


def _check_function(reward: FunctionConfig) -> None:
    """Check that a function or class of the user's can be imported."""
    from digen_core.rewards.own import call_of, import_reward

    try:
        found = import_reward(reward.function)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"rewards: importing {reward.function!r} raised {type(error).__name__}: {error}"
        ) from error
    if reward.options and not isinstance(found, type):
        raise ConfigError(
            f"rewards: {reward.function!r} is a function, but has the options {reward.options}; "
            "only a class takes them"
        )
    if _is_pythons(reward.function.partition(":")[0]):
        raise ConfigError(
            f"rewards: {reward.function!r} is of Python's own library, which has no rewards; name "
            "a function of (images, prompts) that you wrote, as module:function"
        )
    call: object = found
    if isinstance(found, type):
        _check_call(reward.function, "made", found, (), ("device", *reward.options))
        call = call_of(reward.function, found)
        call = partial(call, None) if inspect.isfunction(call) else None  # its self
    if callable(call):
        seen = "latents" if reward.takes == "latents" else "images"
        _check_call(reward.function, "called", call, (seen, "prompts"), ())


def _is_pythons(module: str) -> bool:
    """Say whether a module that is imported is Python's own, and no file of the user's so named."""
    file = getattr(sys.modules.get(module), "__file__", None)
    is_elsewhere = file is not None and not Path(file).is_relative_to(sysconfig.get_path("stdlib"))
    return module.partition(".")[0] in sys.stdlib_module_names and not is_elsewhere


def _check_call(
    name: str,
    how: str,
    function: Callable[..., object],
    positional: Sequence[str],
    named: Sequence[str],
) -> None:
    """Check that a function or class of the user's takes what it will be given."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # it is not written in Python
        return
    given = dict.fromkeys(named)
    if how == "called":
        taken = ("metadata", "sources", "more_sources")
        given |= dict.fromkeys(name for name in taken if name in signature.parameters)
    try:
        signature.bind(*positional, **given)
    except TypeError as error:
        raise ConfigError(
            f"rewards: {name!r} is {how} with ({', '.join((*positional, *given))}), but takes "
            f"{signature}: {error}"
        ) from error
