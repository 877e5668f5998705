"""Judge the last version that a run kept, on its own evaluation prompts or on others."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow
from pydantic import PositiveInt

from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    DamagedError,
    checkpoints_in,
    last_checkpoint,
    read_lineage,
)
from digen_core.checkpoints.resume import changed_prompts
from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.suites import SuiteName
from digen_core.config.load import CONFIG_OF_RUN, config_of_run
from digen_core.errors import UserError
from digen_core.preflight.run import check_judged
from digen_core.records import FIRST, EvaluationReport
from flows.evaluate import evaluate
from flows.launch import reopen_run
from flows.prepare import notify_of_cut_prompts, restore_version
from flows.runtime.context import RunContext, context_of
from flows.runtime.fleet.joining import await_roles
from flows.runtime.fleet.loading import load_models
from flows.runtime.fleet.losses import DevicesLostError, StateLostError
from flows.runtime.fleet.task_set import TaskSet
from flows.runtime.notify import notify
from flows.runtime.observers import say
from flows.runtime.subflows import on_cluster
from tasks.body import ONCE
from tasks.runner.completions import Completions

LATEST = "latest"


@flow(**ONCE, name="evaluate-run", flow_run_name="evaluate {run}")
def evaluate_run(
    run: str = LATEST,
    prompts: str | None = None,
    samples_per_prompt: PositiveInt | None = None,
    suite: SuiteName | None = None,
    settings: dict[str, Any] | None = None,
) -> EvaluationReport:
    """Evaluate a run's last version; the report and its image grid join the run's folder.

    Args:
        run: Folder of the run; "latest" is the newest in the folder runs.
        prompts: File or folder of other prompts than the run's evaluation prompts.
        samples_per_prompt: Images per prompt, other than the run's, or those of the suite.
        suite: Published protocol to judge by, in place of the run's rewards.
        settings: Keys of the config with other values, such as {"rewards.hps.path": "models/hps"}:
            rewards that are named judge in place of the run's own.

    Raises:
        UserError: the folder is not a run's, or holds no whole version.
    """
    run_dir = latest_run(Path("runs")) if run == LATEST else Path(run)
    asked = Judging(prompts, samples_per_prompt, suite, settings or {})
    config = judged_config(run_dir, asked)
    check_judged(config, run_dir, asked)
    with reopen_run(config, run_dir) as reopened:
        reopened.fleet.has_to_see_folder()
        if first := evaluations_of(run_dir).get(FIRST):
            reopened.progress.evaluated(FIRST, first)
        tell_of_damaged(reopened)
        tell_of_changed_prompts(reopened, own=prompts is suite is None)
        while True:
            try:
                on_cluster(reopened, restore)
                report: EvaluationReport = on_cluster(reopened, evaluate, suite or "again")
                return report
            except StateLostError as error:
                notify(reopened, "restored", f"{error}; it is read from its checkpoint again")
            except DamagedError as error:
                leave_out(reopened, error)


def tell_of_damaged(run: RunContext) -> None:
    """Say which checkpoints are seen to be damaged and newer than the one that is evaluated."""
    _, damaged = last_checkpoint(run.run_dir / CHECKPOINTS_OF_RUN)
    for error in damaged:
        notify(run, "restored", f"{error}; the one before is evaluated")


def leave_out(run: RunContext, error: DamagedError) -> None:
    """Leave the checkpoint out that could not be read, and say so.

    One that is gone is not damaged: a run that trains removes old ones.
    """
    checkpoint = run.progress.checkpoint
    assert checkpoint is not None
    run.progress.is_damaged(checkpoint)
    if checkpoint.exists():
        notify(run, "restored", f"{error}; another one is evaluated")


def tell_of_changed_prompts(run: RunContext, *, own: bool) -> None:
    """Say that a run's files of prompts hold others than it was trained and evaluated with.

    Args:
        run: its context.
        own: whether it is evaluated on its own evaluation prompts.
    """
    lineage = None
    with suppress(UserError):  # it is damaged, and nothing else of it is needed
        lineage = read_lineage(run.run_dir)
    if lineage is None:
        return
    config, run_dir = config_of_run(run.run_dir), run.run_dir
    if changed := changed_prompts("train", config, lineage, run_dir):
        follows = "what it is evaluated on may be what it was trained on"
        notify(run, "prompts-changed", f"{changed}; {follows}")
    if own and (changed := changed_prompts("evaluation", config, lineage, run_dir)):
        follows = "what is found cannot be compared with its other evaluations"
        notify(run, "prompts-changed", f"{changed}; {follows}")


def latest_run(runs_dir: Path) -> Path:
    """Return the newest run that kept a version.

    Raises:
        UserError: there is none, or the versions of a newer one cannot be read.
    """
    configs = runs_dir.glob(f"*/{CONFIG_OF_RUN}")
    for config in sorted(configs, key=lambda path: path.stat().st_mtime, reverse=True):
        if checkpoints_in(config.with_name(CHECKPOINTS_OF_RUN)):
            return config.parent
    raise UserError(f"{runs_dir} holds no run with a trained version; train one first")


@flow(**ONCE, name="restore", flow_run_name="{run_id}-restore", validate_parameters=False)
def restore(run_id: str) -> None:
    """Load the model on the workers, and the newest whole version."""
    run = context_of(run_id)
    say("loading the model on the workers")
    while True:
        await_roles(run)
        try:
            with Completions() as completions, TaskSet(run, completions) as task_set:
                load_models(run, task_set, run.fleet.devices)
                notify_of_cut_prompts(run, task_set, run.evaluation_prompts)
                run.progress.begin_with(newest_checkpoint(run))  # now: it may train meanwhile
                restore_version(run, task_set, run.fleet.trainer_devices()[0])
            return
        except DevicesLostError:  # reported already
            continue


def newest_checkpoint(run: RunContext) -> Path:
    """Return the newest checkpoint of a run that is not known to be damaged.

    Raises:
        UserError: there is none.
    """
    checkpoint, _ = last_checkpoint(run.run_dir / CHECKPOINTS_OF_RUN, run.progress.damaged)
    if checkpoint is None:
        raise UserError(f"{run.run_dir} holds no whole version")
    return checkpoint
