"""Pre-flight checks of a run: files, folders, names and devices, before anything starts.

Each check raises ConfigError with one line: what is wrong, its value, and what to do. Checks that
need no torch come first, so that the usual mistakes show at once.
"""

from importlib.util import find_spec
from pathlib import Path

from digen_core.checkpoints.judging import Judging
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, last_checkpoint
from digen_core.checkpoints.suites import SuiteName
from digen_core.config.checkpoint import EVALUATION
from digen_core.config.load import config_of_run
from digen_core.config.prompts import PromptsConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt, evaluation_prompts, train_prompts
from digen_core.errors import ConfigError
from digen_core.inputs.reading import shown
from digen_core.inputs.text import number_of
from digen_core.planning.profile import load_profile
from digen_core.preflight.model import check_model
from digen_core.preflight.network import (
    check_database_beside,
    check_scheduler,
    check_tracking,
    check_writable,
)
from digen_core.preflight.rewards import check_rewards
from digen_core.preflight.shown import check_shown


def check_run(config: RunConfig, *, is_new: bool = True) -> None:
    """Check all that a run reads, writes and talks to, without loading the model.

    Args:
        config: of the run.
        is_new: whether it is none that is resumed, which goes on as it began.

    Raises:
        ConfigError: something is missing or does not fit; the message is one line.
    """
    if is_new:
        _check_one_evaluation(config.prompts)
        _check_judged_between(config)
    check_inputs(config)
    _check_surroundings(config)


def check_run_folder(run_dir: Path) -> None:
    """Check that a run's folder, which is there, can be written to.

    Raises:
        ConfigError: it cannot.
    """
    check_writable(f"the run's folder is {run_dir}", run_dir)


def check_inputs(config: RunConfig) -> None:
    """Check the prompts, rewards and model of a config, without loading it.

    Raises:
        ConfigError: something is missing or does not fit; the message is one line.
    """
    train, evaluation = train_prompts(config), evaluation_prompts(config)
    _check_held_out(config, train, evaluation)
    _check_enough_prompts(config, train)
    check_rewards(config, train, evaluation)
    check_model(config)
    check_shown(config.model, [*train, *evaluation])


def check_judged(config: RunConfig, run_dir: Path, asked: Judging) -> None:
    """Check a finished run's folder, and prompts, rewards and model of the config that judges it.

    Args:
        config: to judge it with.
        run_dir: folder of the run.
        asked: what it is of.

    Raises:
        ConfigError: as `check_inputs` and `check_suite` do.
        DamagedError: no version is whole.
    """
    check_run_folder(run_dir)
    last_checkpoint(run_dir / CHECKPOINTS_OF_RUN)
    if asked.suite is None:
        check_inputs(config)
        return
    if asked.prompts is None:
        _check_own_prompts(config, asked.suite)
    check_suite(config, config_of_run(run_dir))


def _check_own_prompts(config: RunConfig, suite: SuiteName) -> None:
    """Check that the prompts of a run have what a suite reads beside them."""
    try:
        evaluation_prompts(config)
    except ConfigError as error:
        raise ConfigError(
            f"the suite {suite} is for prompts of its own, which --prompts names "
            f"(docs/rewards.md); the run's cannot be judged by it: {error}"
        ) from error


def check_suite(config: RunConfig, trained: RunConfig) -> None:
    """Check the prompts, reward and model of a config that judges a run by a suite.

    Args:
        config: of the suite.
        trained: of the run.

    Raises:
        ConfigError: something is missing or does not fit, or the run was trained on a prompt of the
            suite; the message is one line.
    """
    evaluation = evaluation_prompts(config)
    keys = {prompt.normal_key for prompt in train_prompts(trained)}
    shared = [prompt for prompt in evaluation if prompt.normal_key in keys]
    if shared:
        raise ConfigError(
            f"{len(shared)} of {len(evaluation)} prompts of the suite were trained on, the first "
            f"being {shown(shared[0].text)}; what is found on them says nothing of others"
        )
    check_rewards(config, [], evaluation)
    check_model(config)
    check_shown(config.model, evaluation)


def _check_one_evaluation(prompts: PromptsConfig) -> None:
    """Check that no prompts are kept for evaluations that are of others."""
    if prompts.evaluation is not None and prompts.evaluation_fraction is not None:
        raise ConfigError(
            f"prompts.evaluation is {prompts.evaluation} and prompts.evaluation_fraction "
            f"{prompts.evaluation_fraction}, so that what this keeps of {prompts.train} would be "
            'neither trained on nor evaluated; set one of them to "null"'
        )


def _check_judged_between(config: RunConfig) -> None:
    """Check that versions are evaluated of which the best are to be kept."""
    checkpoints = config.checkpoints
    if not checkpoints.keep_best or config.evaluation.every:
        return
    if checkpoints.best_by.startswith(EVALUATION):
        raise ConfigError(
            f"checkpoints.best_by is {checkpoints.best_by!r}, but evaluation.every is 0, so that "
            "only the last version is evaluated; set evaluation.every to the iterations between "
            "two evaluations, or use reward/mean"
        )


def _check_held_out(config: RunConfig, train: list[Prompt], evaluation: list[Prompt]) -> None:
    trained = {prompt.normal_key for prompt in train}
    shared = [prompt for prompt in evaluation if prompt.normal_key in trained]
    if not shared:
        return
    what = (
        f"{len(shared)} of {len(evaluation)} evaluation prompts are trained on, the first being "
        f"{shown(shared[0].text)}"
    )
    if config.prompts.evaluation is None:
        raise ConfigError(f"{what}; put all its rows into one split ({shared[0].origin})")
    raise ConfigError(
        f"{what}; keep them in one of {config.prompts.train} and {config.prompts.evaluation} only"
    )


def _check_enough_prompts(config: RunConfig, train: list[Prompt]) -> None:
    wanted = config.rollout.prompts_per_iteration
    if wanted > len(train):
        raise ConfigError(
            f"rollout.prompts_per_iteration is {wanted}, but {config.prompts.train} has only "
            f"{number_of(len(train), 'prompt')} to train on; use at most {len(train)}"
        )


def _check_surroundings(config: RunConfig) -> None:
    """Check where results go, what work is said to cost, and the servers that are to be used."""
    runs_dir = config.tracking.runs_dir
    check_writable(f"tracking.runs_dir is {runs_dir}", Path(runs_dir))
    if config.schedule.profile is not None:
        load_profile(config.schedule.profile)
    if config.cluster.address is not None:
        is_own = config.cluster.scheduler_address is not None
        label = "cluster.scheduler_address" if is_own else "DASK_SCHEDULER_ADDRESS"
        check_scheduler(label, config.cluster.address)
    _check_places(config)
    if uri := config.tracking.uri:
        label = "tracking.mlflow_uri" if config.tracking.mlflow_uri else "MLFLOW_TRACKING_URI"
        check_tracking(label, uri)
    else:
        check_database_beside(f"tracking.runs_dir is {runs_dir}", Path(runs_dir))


def _check_places(config: RunConfig) -> None:
    """Check that the libraries of the places beside MLflow are installed; none is imported."""
    for name in config.tracking.also:
        if find_spec(name) is None:
            raise ConfigError(
                f"tracking.also names {name}, but its library is not installed here; call: pip "
                f"install 'digen[{name}]'"
            )
