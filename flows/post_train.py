"""Post-train a model with reinforcement learning. Read this file first.

| prepare: every worker loads the model; version 0 is made and pushed
| evaluate -> iteration 0 -> iteration 1 -> ... -> evaluate -> export
"""

from typing import Any

from prefect import Flow, flow

from digen_core.checks import check_inputs
from digen_core.config import RunConfig
from digen_core.records import RunReport
from flows.evaluate import evaluate
from flows.export import export
from flows.iteration import iteration
from flows.prepare import prepare
from flows.run import open_run
from tasks.runner import LeanDaskTaskRunner


@flow(name="post-train", flow_run_name="{config.name}")
def post_train(config: RunConfig) -> RunReport:
    """Train for ``config.num_iterations`` rounds of prompts; compare before with after."""
    check_inputs(config)
    with open_run(config) as session:

        def on_cluster(subflow: Flow[Any, Any], *arguments: Any) -> Any:
            runner = LeanDaskTaskRunner(session.address)
            return subflow.with_options(task_runner=runner)(session.run_id, *arguments)

        on_cluster(prepare)
        before = on_cluster(evaluate, "before")
        for index in range(config.num_iterations):
            on_cluster(iteration, index)
            if session.out_of_time:
                break
            if session.evaluation_due:
                on_cluster(evaluate, f"iteration-{index:04d}")
        after = on_cluster(evaluate, "after")
        on_cluster(export)
        return session.report(before, after)
