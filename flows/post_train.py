"""Post-train a model with reinforcement learning. Read this file first.

| prepare: every worker loads the model; version 0 is made and pushed
| evaluate -> iteration 0 -> iteration 1 -> ... -> evaluate -> export
The conductor runs the iterations; in a stale layout one begins while the one before still trains.
"""

from prefect import flow

from digen_core.checks import check_inputs
from digen_core.config import RunConfig
from digen_core.records import RunReport
from flows.control import ending_as_asked
from flows.evaluate import evaluate
from flows.export import export
from flows.prepare import prepare
from flows.run import on_cluster, open_run


@flow(name="post-train", flow_run_name="{config.name}")
@ending_as_asked
def post_train(config: RunConfig) -> RunReport:
    """Train for ``config.num_iterations`` rounds of prompts; compare before with after."""
    check_inputs(config)
    with open_run(config) as session:
        conductor = on_cluster(session, prepare)
        before = on_cluster(session, evaluate, "before")
        with conductor:
            for index in range(config.num_iterations):
                conductor.complete(index, last=session.last_before_evaluation(index))
                if conductor.out_of_time:
                    break
                if session.evaluation_due(index):
                    on_cluster(session, evaluate, f"iteration-{index:04d}")
        after = on_cluster(session, evaluate, "after")
        on_cluster(session, export)
        return session.report(before, after)
