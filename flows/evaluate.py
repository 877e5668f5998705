"""Judge a version on prompts that were never trained on."""

from collections.abc import Sequence
from uuid import UUID

import dask
import numpy as np
from prefect import flow

from digen_core.records import EvaluationReport
from digen_core.rewards.failures import component_means, settle
from flows.collect import receipts_of
from flows.publishing import publish_evaluation
from flows.session import Session, say, session_of
from flows.subflows import on_cluster
from tasks.completions import Completions
from tasks.evaluate import sample_and_score
from tasks.train import publish

IMAGES_PER_TASK = 64


@flow(name="evaluate", flow_run_name="{run_id}-evaluate-{tag}", validate_parameters=False)
def evaluate(run_id: str, tag: str) -> EvaluationReport:
    """Sample the evaluation prompts with the session's evaluated weights, score and publish."""
    session = session_of(run_id)
    settings = session.config.evaluation
    say(f"evaluating version {session.version} on {len(session.evaluation_prompts)} prompts")
    prompts = session.evaluation_prompts
    per_task = max(1, IMAGES_PER_TASK // settings.samples_per_prompt)
    batches = [range(i, min(i + per_task, len(prompts))) for i in range(0, len(prompts), per_task)]
    labels: dict[UUID, tuple[str, str]] = {}
    devices = session.rollout_devices()
    trainer = session.trainer_devices()[0]
    with Completions() as completions:
        futures = []
        label = f"publish average v{session.version}"
        with dask.annotate(workers=[trainer]):
            average = publish.submit(run_id, label, session.state, average=True)
        labels[average.task_run_id] = (label, trainer)
        for number, batch in enumerate(batches):
            device = devices[number % len(devices)]
            label = f"evaluate v{session.version} b{number:02d}"
            with dask.annotate(workers=[device]):
                future = sample_and_score.submit(
                    run_id,
                    label,
                    prompts=[prompts[index] for index in batch],
                    indices=list(batch),
                    shown=len([index for index in batch if index < settings.grid_prompts]),
                    samples_per_prompt=settings.samples_per_prompt,
                    policy_version=average,
                )
            labels[future.task_run_id] = (label, device)
            futures.append(future)
        receipts = receipts_of(session, completions, labels)
    report = _report(session, [receipts[future.task_run_id]["rewards"] for future in futures])
    shown = [
        f.result()
        for f, batch in zip(futures, batches, strict=True)
        if batch.start < settings.grid_prompts
    ]
    publish_evaluation(
        session,
        tag,
        report,
        [prompt.text for prompt in prompts[: settings.grid_prompts]],
        np.concatenate(shown),
    )
    return report


def evaluate_once(session: Session, tag: str) -> None:
    """Evaluate the version of now, unless the run did so before it was interrupted."""
    known = session.evaluations.get(tag)
    if known is None or known.version != session.version:
        session.evaluations[tag] = on_cluster(session, evaluate, tag)


def _report(session: Session, parts: Sequence[dict[str, list[float]]]) -> EvaluationReport:
    """Average the rewards of all tasks; for scores that failed, they are one group."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    means = component_means(settle(columns, session.config.reward_weights))
    return EvaluationReport(
        version=session.version,
        num_prompts=len(session.evaluation_prompts),
        num_samples=sum(len(part["reward"]) for part in parts),
        rewards=means,
    )
