"""One RL iteration as a DAG: the controller decides, tasks do, futures carry the data.

| encode -> denoise t00 -> ... -> denoise tT -> score -> advantages -> train* -> reduce
|   -> optimizer step -> push to every worker
"""

from time import time

from prefect import flow

from digen_core.algorithms.windows import trained_steps
from digen_core.config import RunConfig
from digen_core.control.protocol import Event, FinishIteration, Instruction, IterationOffered
from digen_core.data import prompts_of_iteration
from digen_core.seeding import WINDOW, numpy_generator_for
from flows.executor import Executor
from flows.publishing import publish_iteration
from flows.recorder import IterationRecorder
from flows.session import Round, session_of
from flows.steps import steps_per_task
from tasks.completions import Completions


@flow(name="iteration", flow_run_name="{run_id}-i{index:04d}", validate_parameters=False)
def iteration(run_id: str, index: int) -> None:
    """Generate, score, train and push one round of prompts, and publish its record."""
    session, started = session_of(run_id), time()
    round_ = round_of(session.config, session.prompts, index)
    recorder = IterationRecorder(session, round_)
    num_steps_per_task = steps_per_task(session.config, session.step_seconds)
    with Completions() as completions:
        executor = Executor(session, completions, recorder, round_)
        event: Event = IterationOffered(index, tuple(round_.trained_steps))
        while not _carry_out(executor, session.controller.handle(event)):
            event = executor.next_event()
    session.step_seconds = recorder.step_seconds
    session.num_iterations += 1
    publish_iteration(session, recorder.record(time() - started, num_steps_per_task))


def round_of(config: RunConfig, prompts: list[str], index: int) -> Round:
    """Draw the prompts and the trained steps of an iteration."""
    return Round(
        index=index,
        prompts=prompts_of_iteration(
            prompts, index, config.rollout.prompts_per_iteration, seed=config.seed
        ),
        trained_steps=trained_steps(
            config.rollout.num_steps,
            fraction=config.algorithm.trained_fraction,
            window=config.algorithm.window,
            generator=numpy_generator_for(config.seed, WINDOW, index),
        ),
    )


def _carry_out(executor: Executor, instructions: list[Instruction]) -> bool:
    """Submit the tasks of instructions; return whether they end the iteration."""
    for instruction in instructions:
        if isinstance(instruction, FinishIteration):
            return True
        executor.submit(instruction)
    return False
