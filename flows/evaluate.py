"""Judge a version on prompts that were never trained on."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any
from uuid import UUID

import dask
import numpy as np
from prefect import flow
from prefect.futures import PrefectFuture

from digen_core.records import EvaluationReport
from digen_core.rewards.failures import component_means, settle
from digen_core.rewards.scoring import Asked
from flows.collect import receipts_of
from flows.publishing import publish_evaluation
from flows.scoring import merged_rewards
from flows.session import Session, say, session_of
from flows.subflows import on_cluster
from tasks.completions import Completions
from tasks.evaluate import sample_and_score, thumbnails
from tasks.score import Pool, score
from tasks.train import publish

IMAGES_PER_TASK = 64


@flow(name="evaluate", flow_run_name="{run_id}-evaluate-{tag}", validate_parameters=False)
def evaluate(run_id: str, tag: str) -> EvaluationReport:
    """Sample the evaluation prompts with the session's evaluated weights, score and publish."""
    session = session_of(run_id)
    count = session.config.evaluation.grid_prompts
    say(f"evaluating version {session.version} on {len(session.evaluation_prompts)} prompts")
    with Completions() as completions:
        evaluation = _Evaluation(session)
        evaluation.submit()
        receipts = receipts_of(session, completions, evaluation.labels)
    report = _report(session, evaluation.rewards(receipts))
    pictures = np.concatenate([future.result() for future in evaluation.thumbnails])
    shown = [prompt.text for prompt in session.evaluation_prompts[:count]]
    publish_evaluation(session, tag, report, shown, pictures)
    return report


class _Evaluation:
    """The tasks of an evaluation, by batches of prompts."""

    def __init__(self, session: Session) -> None:
        self.labels: dict[UUID, tuple[str, str]] = {}
        self.thumbnails: list[PrefectFuture[Any]] = []
        self._session = session
        self._pools = Pool.all_of(session.config)
        self._scoring: list[list[UUID]] = []  # of each batch, first who sampled it

    def submit(self) -> None:
        """Submit all of them."""
        session = self._session
        settings, count = session.config.evaluation, len(session.evaluation_prompts)
        size = max(1, IMAGES_PER_TASK // settings.samples_per_prompt)
        batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
        trainer, label = session.trainer_devices()[0], f"publish average v{session.version}"
        average = self._submit(publish, label, worker=trainer, state=session.state, average=True)
        devices = cycle(session.rollout_devices())
        for number, (batch, device) in enumerate(zip(batches, devices, strict=False)):
            self._submit_batch(f"v{session.version} b{number:02d}", batch, device, average)

    def _submit_batch(
        self, name: str, batch: range, device: str, average: PrefectFuture[Any]
    ) -> None:
        """Have a batch sampled and scored on a device, and scored by the pools."""
        settings = self._session.config.evaluation
        prompts = [self._session.evaluation_prompts[index] for index in batch]
        shown = max(0, min(settings.grid_prompts, batch.stop) - batch.start)
        images = self._submit(
            sample_and_score,
            f"evaluate {name}",
            worker=device,
            prompts=prompts,
            indices=list(batch),
            samples_per_prompt=settings.samples_per_prompt,
            policy_version=average,
            keep=bool(self._pools or shown),
        )
        asked = Asked.of(prompts, settings.samples_per_prompt)
        scored = [
            self._submit(
                score,
                f"score {name} {pool.name}",
                pool=pool,
                images=images,
                prompts=asked.prompts,
                metadata=asked.metadata,
            )
            for pool in self._pools
        ]
        self._scoring.append([future.task_run_id for future in (images, *scored)])
        if shown:
            future = self._submit(
                thumbnails,
                f"thumbnails {name}",
                worker=device,
                images=images,
                samples_per_prompt=settings.samples_per_prompt,
                shown=shown,
            )
            self.thumbnails.append(future)

    def _submit(
        self, task: Any, label: str, *, worker: str | None = None, **parameters: Any
    ) -> PrefectFuture[Any]:
        """Submit a task to a worker, or to those of the pool that it takes."""
        where = worker or parameters["pool"].name
        with dask.annotate(**({"workers": [where]} if worker else {"resources": {where: 1}})):
            future: PrefectFuture[Any] = task.submit(self._session.run_id, label, **parameters)
        self.labels[future.task_run_id] = (label, where)
        return future

    def rewards(self, receipts: Mapping[UUID, dict[str, Any]]) -> list[dict[str, list[float]]]:
        """Return the columns of each batch."""
        config = self._session.config
        return [merged_rewards(config, [receipts[id_] for id_ in ids]) for ids in self._scoring]


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
