"""Judge a version on prompts that were never trained on."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from math import ceil, prod
from typing import Any, Final

import numpy as np
from prefect import flow
from prefect.futures import PrefectFuture

from digen_core.config.rewards import forms_of, that_see
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt, prompts_hash
from digen_core.inputs.text import number_of
from digen_core.records import FIRST, EvaluationReport
from digen_core.rewards.asked import for_samples
from digen_core.rewards.dpg.categories import category_shares
from digen_core.rewards.failures import component_means, grouped_means, settle
from digen_core.rewards.geneval.tasks import accuracies, task_means
from digen_core.rewards.kinds import kind_means, kind_scores
from digen_core.rewards.protocol import judged_by, sample_scores, sampled_as
from digen_core.rewards.relative import without_relative
from digen_core.rewards.sums import joined
from flows.runtime.context import RunContext, context_of
from flows.runtime.fleet.losses import DevicesLostError, StateLostError, take_over
from flows.runtime.fleet.task_set import Submitted, TaskSet, require_devices
from flows.runtime.group_scoring import asks_server
from flows.runtime.observers import count, say
from flows.runtime.publishing import publish_evaluation
from flows.runtime.scoring import merged_rewards
from flows.runtime.subflows import on_cluster
from flows.runtime.versions import sends_deltas
from tasks.body import ONCE
from tasks.evaluate import sample_and_score, thumbnails
from tasks.receipts import Facts, HeldVersion, Nothing, Scored
from tasks.runner.completions import Completions
from tasks.score import Pool, score
from tasks.versions import publish

SAMPLES_PER_TASK: Final = 64
PIXELS_PER_TASK: Final = 64 * 2**20
"""Of all frames, 0.8 GB of them, unless a prompt has more: its device holds those of a task to
score them."""
FETCH_SECONDS: Final = 60.0


@flow(**ONCE, name="evaluate", flow_run_name="{run_id}-evaluate-{tag}", validate_parameters=False)
def evaluate(run_id: str, tag: str) -> EvaluationReport:
    """Sample the evaluation prompts with the run's evaluated weights, score and publish.

    What a lost worker had of it is sampled by the others.

    Raises:
        StateLostError: the one that holds the weights is lost, and nobody has a copy, or nobody is
            left who generates.
    """
    run = context_of(run_id)
    count = run.config.evaluation.grid_prompts
    prompts = number_of(len(run.evaluation_prompts), "prompt")
    say(f"evaluating version {run.progress.version} on {prompts}")
    with Completions() as completions, TaskSet(run, completions) as task_set:
        parts = _Evaluation(run, task_set).run()
    report = _report(run, tag, [part.rewards(run.config) for part in parts])
    pictures = np.concatenate([p.thumbnails for p in parts if p.thumbnails is not None])
    shown = run.evaluation_prompts[:count]
    texts, grid = [prompt.text for prompt in shown], with_sources(shown, pictures)
    publish_evaluation(run, tag, report, texts, grid)
    run.fleet.forgive_losses()
    return report


def with_sources(prompts: Sequence[Prompt], pictures: np.ndarray) -> np.ndarray:
    """Return pictures of n prompts, [n, k, ..., H, W, 3], after what they are edits of, if so.

    What prompts have fewer of than others is white.
    """
    most = max((len(prompt.images) for prompt in prompts), default=0)
    sources = np.full((len(prompts), most, *pictures.shape[2:]), 255, pictures.dtype)
    for row, prompt in enumerate(prompts):
        for place, image in enumerate(prompt.images):
            sources[row, place] = image.pixels(*pictures.shape[-3:-1])  # in each frame of a video
    return np.concatenate([sources, pictures], axis=1)


@dataclass
class _Part:
    """Some prompts that are sampled in one task, and what there is of them."""

    number: int
    prompts: range  # indices in the evaluation set
    shown: int  # prompts of it that have pictures on the pages
    device: str = ""
    pending: dict[int, Submitted[Scored]] = field(default_factory=dict)  # sampling is 0, then pools
    scored: dict[int, Scored] = field(default_factory=dict)  # those of them that have ended
    drawing: Submitted[Nothing] | None = None
    thumbnails: np.ndarray | None = None  # of the shown prompts, fetched from the device

    @property
    def is_done(self) -> bool:
        """Whether all that was asked of it is there."""
        return not self.pending and (not self.shown or self.thumbnails is not None)

    def rewards(self, config: RunConfig) -> dict[str, list[float]]:
        """Return the columns of its samples."""
        places = range(1 + len(Pool.that_see("samples", config)))
        return merged_rewards(config, [self.scored[place] for place in places])

    def submitted(self) -> list[Submitted[Facts]]:
        """Return its tasks, save those that have scored."""
        return [*self.pending.values(), *([self.drawing] if self.drawing else [])]

    def take(self, ended: Submitted[Facts]) -> None:
        """Keep what a task scored, and let its images go, if it is one of this part's."""
        for place in [place for place, task in self.pending.items() if task is ended]:
            self.scored[place] = self.pending.pop(place).facts


class _Evaluation:
    """The tasks of an evaluation, by parts, each on a device and in the pools."""

    def __init__(self, run: RunContext, task_set: TaskSet) -> None:
        settings = run.config.evaluation
        self._run = run
        self._task_set = task_set
        self._pools = Pool.that_see("samples", run.config)
        pooled = {n: r for pool in self._pools for n, r in pool.rewards.items()}
        self._needed = forms_of(that_see(pooled, "samples"))  # of samples, by pools
        self._average = self._publish()
        self._parts = [
            _Part(number, own, max(0, min(settings.grid_prompts, own.stop) - own.start))
            for number, own in enumerate(prompts_of_tasks(run.config, len(run.evaluation_prompts)))
        ]

    def _publish(self) -> Submitted[HeldVersion]:
        """Have the holder of the state take out of it what is evaluated."""
        progress = self._run.progress
        label = f"publish average v{progress.version}"
        return self._task_set.submit(
            publish, label, progress.holder, state=progress.state, average=True, expected=0.0
        )

    def run(self) -> list[_Part]:
        """Return the parts with all that was asked of them."""
        self._submit(self._parts)
        while self._task_set.num_pending:
            count(sum(part.is_done for part in self._parts), len(self._parts))
            try:
                self._take(self._task_set.next())
            except DevicesLostError as lost:
                self._move(lost.names)
        return self._parts

    def _take(self, ended: Submitted[Facts]) -> None:
        for part in self._parts:
            part.take(ended)
            if ended is part.drawing:
                part.thumbnails = self._fetched(ended.future)

    def _fetched(self, drawn: PrefectFuture[Any]) -> np.ndarray:
        """Bring pictures here, while the worker that has them is there."""
        try:
            array: np.ndarray = drawn.result(timeout=FETCH_SECONDS)
            return array
        except Exception:
            require_devices(self._run, now=True)
            raise

    def _submit(self, parts: Sequence[_Part]) -> None:
        devices = self._run.fleet.rollout_devices()
        if not devices:
            raise StateLostError("all workers were lost that generate")
        for part, device in zip(parts, cycle(devices), strict=False):
            part.device = device
            self._submit_part(part)

    def _move(self, lost: Collection[str]) -> None:
        """Have others do what lost devices had not finished."""
        progress, gone = self._run.progress, set(lost)
        if progress.holder in lost:
            take_over(self._run)
            self._task_set.forget([self._average])
            self._average = self._publish()
            gone = {part.device for part in self._parts}  # all that is sampled waits for it
        moving = [part for part in self._parts if part.device in gone and not part.is_done]
        for part in moving:
            self._task_set.forget(part.submitted())
            part.pending.clear()
            part.scored.clear()
            part.thumbnails = None
        self._submit(moving)

    def _submit_part(self, part: _Part) -> None:
        """Have a part sampled and scored on its device, and scored by the pools."""
        run, settings = self._run, self._run.config.evaluation
        name = f"v{run.progress.version} b{part.number:02d}"
        size = run.config.model.size
        prompts = [run.evaluation_prompts[index].shown_in(size) for index in part.prompts]
        sampling = self._task_set.submit(
            sample_and_score,
            f"evaluate {name}",
            part.device,
            prompts=prompts,
            indices=list(part.prompts),
            samples_per_prompt=settings.samples_per_prompt,
            policy_version=self._average.future,
            source=run.fleet.workers_of(run.progress.holder),
            by_delta=sends_deltas(run, (run.progress.holder, part.device)),
            shown=part.shown,
            keep=self._needed.union({"images"} if part.shown else ()),
            expected=self._expected(part),
        )
        part.pending[0], samples = sampling, sampling.future
        for place, pool in enumerate(self._pools, start=1):
            part.pending[place] = self._task_set.submit(
                score,
                f"score {name} {pool.name}",
                pool.name,
                pool=pool,
                samples=samples,
                size=size,
                prompts=for_samples(prompts, settings.samples_per_prompt),
                expected=None if asks_server(that_see(pool.rewards, "samples")) else 0.0,
            )
        if part.shown:
            part.drawing = self._task_set.submit(
                thumbnails,
                f"thumbnails {name}",
                part.device,
                samples=samples,
                samples_per_prompt=settings.samples_per_prompt,
                shown=part.shown,
                expected=0.0,
            )

    def _expected(self, part: _Part) -> float | None:
        """Return the seconds that sampling a part should take; None if costs are not known.

        Nor are they where a server is asked about all of it.
        """
        run, config = self._run, self._run.config
        if asks_server(that_see(config.rewards_of(None), "samples")):
            return None
        if config.model.compile or not run.progress.known_costs.kinds:
            return None
        if config.prompts.sample_columns:  # a step is known as a part of encoding a file's image
            return None
        device = run.fleet.known[part.device]
        num_samples = len(part.prompts) * config.evaluation.samples_per_prompt
        together = num_samples if device.size == 1 else min(num_samples, config.batch_size)
        seconds = run.progress.known_costs.kinds[device.kind].fragment(
            together, config.evaluation_steps
        )
        return ceil(num_samples / together) * seconds


def prompts_of_tasks(config: RunConfig, count: int) -> list[range]:
    """Return which prompts of an evaluation are sampled in each task.

    Args:
        config: of the run.
        count: prompts of the evaluation.
    """
    number = config.evaluation.samples_per_prompt  # of a prompt
    pixels = number * prod(config.model.size)
    size = max(1, min(SAMPLES_PER_TASK // number, PIXELS_PER_TASK // pixels))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def evaluate_once(run: RunContext, tag: str) -> None:
    """Evaluate the version of now, unless the run did so before it was interrupted."""
    known = run.progress.evaluations.get(tag)
    if known is None or known.version != run.progress.version:
        run.progress.evaluated(tag, on_cluster(run, evaluate, tag))


def _report(run: RunContext, tag: str, parts: Sequence[dict[str, list[float]]]) -> EvaluationReport:
    """Average the rewards of all tasks; for scores that failed, they are one group.

    Rewards that compare the samples of a group are not asked: what they say of different policies'
    samples is the same.
    """
    rewards = run.config.rewards
    settled = without_relative(settle(joined(parts), that_see(rewards, "samples")), rewards)
    size = run.config.evaluation.samples_per_prompt
    by_prompt, by_sample = grouped_means(settled, size), sample_scores(settled, rewards, size)
    by_task = accuracies(rewards, run.evaluation_prompts, by_prompt)
    by_kind = kind_scores(rewards, run.evaluation_prompts, by_prompt)
    of_categories = category_shares(rewards, run.evaluation_prompts, by_prompt)
    report = EvaluationReport(
        version=run.progress.version,
        num_prompts=len(run.evaluation_prompts),
        num_samples=sum(len(part["reward"]) for part in parts),
        rewards=component_means(settled)
        | task_means(by_task)
        | kind_means(by_kind)
        | of_categories,
        by_prompt=by_prompt | by_task | by_kind,
        by_sample=by_sample,
        prompts_hash=prompts_hash(run.evaluation_prompts),
        sampled_as=sampled_as(run.config),
        judged_by={name: judged_by(rewards, name) for name in by_sample},
    )
    first = None if tag == FIRST else run.progress.evaluations.get(FIRST)
    return report.model_copy(update={"wins": report.wins_over_base(first)}) if first else report
