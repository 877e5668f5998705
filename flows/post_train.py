"""Post-train a model with reinforcement learning. Read this file first.

| prepare: every worker loads the model; version 0, or that of a checkpoint, is pushed
| evaluate -> iteration 0 -> iteration 1 -> ... -> evaluate -> export
The conductor (flows/runtime/conductor.py), one loop around one controller, runs the iterations; in
a stale layout one begins while the one before still trains. Each iteration ends with its record and
a checkpoint on disk (flows/runtime/publishing.py). Where the optimizer's state is lost, with all
workers that have it, the run resumes by itself from its last checkpoint.

The same run as one serial loop, whose weights every layout has, is digen_core/reference/loop.py:
from there it is two more files to the formula of a transition.
"""

from digen_core.checkpoints.manifest import DamagedError
from digen_core.config.run import RunConfig
from digen_core.preflight.reward_probe import probe_before_start
from digen_core.preflight.rewards import notes_on_rewards
from digen_core.preflight.run import check_run
from digen_core.records import LAST, RunReport
from flows.configured import configured_flow
from flows.evaluate import evaluate_once
from flows.export import export
from flows.launch import open_run
from flows.prepare import prepare
from flows.reopen import folder_to_resume, go_back
from flows.runtime.context import RunContext
from flows.runtime.fleet.losses import StateLostError
from flows.runtime.observers import say, warn
from flows.runtime.publishing import keep_last
from flows.runtime.requests import ending_as_asked
from flows.runtime.subflows import on_cluster


@configured_flow(name="post-train", flow_run_name="{config.name}")
@ending_as_asked
def post_train(config: RunConfig, resume: str | None = None) -> RunReport:
    """Train for ``config.num_iterations`` rounds of prompts; compare before with after.

    Args:
        config: The whole run. Keys that are given alone are laid over the deployment's config.
        resume: Folder of a run to resume from its last checkpoint, such as runs/NAME, or auto:
            the newest run of the config's name, if there is one; empty starts a new run.
    """
    folder = folder_to_resume(config, resume)
    check_run(config, is_new=folder is None)
    probe_before_start(config, warn)
    for note in notes_on_rewards(config):
        warn(note)
    with open_run(config, folder) as run:
        run.fleet.has_to_see_folder()
        while True:
            try:
                train(run)
                report = run.report()
                break
            except (StateLostError, DamagedError) as error:
                go_back(run, error)
    for task in run.when_free:
        task()
    return report


def train(run: RunContext) -> None:
    """Train from where a run stands to the end, and export what was trained.

    Raises:
        StateLostError: it can be resumed from the last checkpoint.
        DamagedError: it can be resumed from the checkpoint before.
    """
    config = run.config
    with on_cluster(run, prepare) as conductor:
        for index in range(run.progress.num_iterations, config.num_iterations):
            if tag := run.evaluation_before(index):
                if index and config.checkpoints.are_of_evaluated:
                    keep_last(run)
                evaluate_once(run, tag)
                say("training")
            conductor.complete(index, last=run.last_before_evaluation(index))
            if conductor.limit_reached:
                say(f"{conductor.limit_reached}: no more iterations")
                break
    keep_last(run)
    evaluate_once(run, LAST)
    on_cluster(run, export)
