"""One RL iteration as a DAG: the controller decides, tasks do, futures carry the data.

| encode -> denoise t00 -> ... -> denoise tT -> score -> train* -> reduce
|   -> optimizer step -> push to every worker
"""

from prefect import State, flow, runtime
from prefect.states import Cancelled

from digen_core.config.run import RunConfig
from digen_core.data.draws import prompts_with_refills
from digen_core.data.prompts import Prompt
from flows.runtime.context import context_of
from flows.runtime.fleet.roles import best_turn
from flows.runtime.fleet.waiting import wait_for_turn
from flows.runtime.iterations.open_iteration import OpenIteration, Published
from flows.runtime.iterations.patience import require_numbers
from flows.runtime.iterations.recorder import IterationRecorder
from flows.runtime.iterations.round import Round
from flows.runtime.notify import notify_of_clipping
from flows.runtime.publishing import publish_iteration
from flows.runtime.scheduling import learn_costs
from flows.runtime.workload import steps_per_task
from tasks.body import ONCE
from tasks.runner.completions import Completions
from tasks.views.retention import ITERATION_FLOW


def name_of_run() -> str:
    """Return the name of the flow run of an iteration that is opened; people count from 1."""
    parameters = runtime.flow_run.parameters
    return f"{parameters['run_id']}-i{parameters['index'] + 1:04d}"


@flow(**ONCE, name=ITERATION_FLOW, flow_run_name=name_of_run, validate_parameters=False)
def iteration(run_id: str, index: int) -> State | None:
    """Stay open while the conductor runs one round of prompts, then publish its record."""
    run = context_of(run_id)
    round_ = round_of(run.config, run.prompts, index)
    num_steps_per_task = steps_per_task(
        run.config, run.progress.step_seconds, len(run.fleet.devices)
    )
    recorder = IterationRecorder(run, round_)
    with Completions(run.inbox):
        opened = OpenIteration(round_, recorder, num_steps_per_task)
        run.inbox.put(opened)
        wait_for_turn(opened.turn, runtime.flow_run.id)
        ended = opened.outcome.result()
    if ended is None:
        return Cancelled(message="the run has ended, or did this iteration on its own page")
    opened.segments.clear()  # workers need the room for those of the next iteration
    with opened.publishing():
        record = recorder.record(ended, num_steps_per_task)
        publish_iteration(run, record, opened.reward_history)
    notify_of_clipping(run, record)
    require_numbers(run, index, is_barren=recorder.is_barren)
    learn_costs(run, record.spans, record.crossings)
    if turn := best_turn(run):
        run.inbox.put(turn)
    run.inbox.put(Published(index))
    return None


def round_of(config: RunConfig, prompts: list[Prompt], index: int) -> Round:
    """Draw the prompts of an iteration."""
    drawn, rollout = prompts_with_refills(config, prompts, index), config.rollout
    return Round(index, drawn, rollout.refill, is_screened=rollout.screening is not None)
