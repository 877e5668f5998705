"""One RL iteration as a DAG: the controller decides, tasks do, futures carry the data.

| encode -> denoise t00 -> ... -> denoise tT -> score -> train* -> reduce
|   -> optimizer step -> push to every worker
"""

from prefect import State, flow
from prefect.states import Cancelled

from digen_core.config import RunConfig
from digen_core.data import Prompt, prompts_of_iteration, prompts_of_refills
from digen_core.rollout.steps import steps_of_iteration
from flows.open_iteration import OpenIteration
from flows.publishing import publish_iteration
from flows.recorder import IterationRecorder
from flows.scheduling import learn_costs
from flows.session import Round, session_of
from flows.steps import steps_per_task
from tasks.completions import Completions


@flow(name="iteration", flow_run_name="{run_id}-i{index:04d}", validate_parameters=False)
def iteration(run_id: str, index: int) -> State | None:
    """Stay open while the conductor runs one round of prompts, then publish its record."""
    session = session_of(run_id)
    round_ = round_of(session.config, session.prompts, index)
    num_steps_per_task = steps_per_task(session.config, session.step_seconds, len(session.devices))
    recorder = IterationRecorder(session, round_)
    with Completions(session.inbox):
        opened = OpenIteration(round_, recorder, num_steps_per_task)
        session.inbox.put(opened)
        ended = opened.outcome.result()
    if ended is None:
        return Cancelled(message="the run ended before this iteration did")
    record = recorder.record(ended.version, ended.seconds, num_steps_per_task)
    publish_iteration(session, record, opened.reward_history)
    learn_costs(session, record.spans)
    return None


def round_of(config: RunConfig, prompts: list[Prompt], index: int) -> Round:
    """Draw the prompts and the noisy and trained steps of an iteration."""
    count, refill = config.rollout.prompts_per_iteration, config.rollout.refill
    own = prompts_of_iteration(prompts, index, count, seed=config.seed)
    others = prompts_of_refills(prompts, own, index, refill, seed=config.seed)
    drawn = [*own, *others]
    return Round(
        index=index,
        prompts=[prompt.text for prompt in drawn],
        steps=steps_of_iteration(config, index),
        metadata=[prompt.metadata for prompt in drawn],
        refill=refill,
    )
