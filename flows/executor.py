"""Turn the controller's instructions into Prefect tasks, and their completions into its events.

A task's result stays on the worker that made it; the executor holds futures, which become edges of
the Dask graph, and reads only receipts: seconds, rewards, hashes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatchmethod
from time import time
from typing import Any
from uuid import UUID

import dask
from prefect.futures import PrefectFuture

from digen_core.control import protocol
from digen_core.control.protocol import Event, Fragment, Instruction, PairBlock
from flows.collect import TaskFailedError, next_completion, require_success
from flows.recorder import IterationRecorder
from flows.session import Round, Session
from flows.steps import steps_per_task
from tasks.completions import Completion, Completions
from tasks.rollout import decode_and_score, denoise_steps, encode
from tasks.train import advantages, publish, push_weights, reduce, step, train_pack

URGENT = 1000  # above all fragments: what others wait for


@dataclass(frozen=True, slots=True)
class _Running:
    label: str
    kind: str
    device: str
    queued: float
    event_of: Callable[[dict[str, Any]], Event | None]


class Executor:
    """Submits the tasks of one iteration, and of the pushes before the first one."""

    def __init__(
        self,
        session: Session,
        completions: Completions,
        recorder: IterationRecorder,
        round_: Round,
    ) -> None:
        self._session = session
        self._completions = completions
        self._recorder = recorder
        self._round = round_
        self._running: dict[UUID, _Running] = {}
        self._conditions: dict[int, PrefectFuture[Any]] = {}
        self._segments: dict[Fragment, list[tuple[range, PrefectFuture[Any]]]] = {}
        self._scores: dict[int, dict[int, PrefectFuture[Any]]] = {}
        self._advantages: dict[int, PrefectFuture[Any]] = {}
        self._sums: dict[str, PrefectFuture[Any]] = {}
        self._total: PrefectFuture[Any] | None = None

    def next_event(self) -> Event:
        """Wait until something happens that the controller wants to hear of.

        Raises:
            TaskFailedError: a task failed.
            WorkerLostError: a worker of the run is gone.
        """
        while True:
            event = self._event_of(next_completion(self._session, self._completions))
            if event is not None:
                return event

    def _event_of(self, completion: Completion) -> Event | None:
        running = self._running.pop(completion.task_run_id)
        require_success(self._session, completion, running.label, running.device)
        self._recorder.add_span(running.label, running.kind, running.queued, completion.receipt)
        return running.event_of(completion.receipt)

    def _submit(
        self,
        task: Any,
        kind: str,
        label: str,
        device: str,
        event_of: Callable[[dict[str, Any]], Event | None],
        *,
        priority: int = URGENT,
        **parameters: Any,
    ) -> PrefectFuture[Any]:
        with dask.annotate(workers=[device], priority=priority):
            future: PrefectFuture[Any] = task.submit(self._session.run_id, label, **parameters)
        self._running[future.task_run_id] = _Running(label, kind, device, time(), event_of)
        return future

    @singledispatchmethod
    def submit(self, instruction: Instruction) -> None:
        """Submit the tasks of one instruction."""
        raise TypeError(f"unknown instruction {instruction}")

    @submit.register
    def _(self, do: protocol.Encode) -> None:
        label = f"encode g{do.group:02d}"
        self._conditions[do.group] = self._submit(
            encode,
            "encode",
            label,
            do.device,
            lambda receipt: None,
            priority=-do.group,
            prompt=self._round.prompts[do.group],
        )

    @submit.register
    def _(self, do: protocol.Generate) -> None:
        fragment = do.fragment
        stretches = self._segments.setdefault(fragment, [])
        size = steps_per_task(self._session.config, self._session.step_seconds)
        for first in range(do.first_step, do.end_step, size):
            steps = range(first, min(first + size, do.end_step))
            is_last = steps.stop == do.end_step

            def event_of(receipt: dict[str, Any], is_last: bool = is_last) -> Event | None:
                self._recorder.add_logprobs(fragment, receipt)
                return protocol.FragmentGenerated(fragment) if is_last else None

            future = self._submit(
                denoise_steps,
                "denoise",
                f"denoise g{fragment.group:02d} f{fragment.index} t{_span_name(steps)}",
                do.device,
                event_of,
                priority=-fragment.group,
                fragment=fragment,
                steps=steps,
                noisy_steps=self._round.trained_steps,
                version=do.version,
                condition=self._conditions[fragment.group],
                previous=stretches[-1][1] if stretches else None,
            )
            stretches.append((steps, future))

    @submit.register
    def _(self, do: protocol.Score) -> None:
        fragment = do.fragment

        def event_of(receipt: dict[str, Any]) -> Event:
            self._recorder.add_rewards(fragment, receipt)
            return protocol.FragmentScored(fragment)

        self._scores.setdefault(fragment.group, {})[fragment.index] = self._submit(
            decode_and_score,
            "score",
            f"score g{fragment.group:02d} f{fragment.index}",
            do.device,
            event_of,
            prompt=self._round.prompts[fragment.group],
            segment=self._segments[fragment][-1][1],
        )

    @submit.register
    def _(self, do: protocol.ComputeAdvantages) -> None:
        def event_of(receipt: dict[str, Any]) -> Event:
            self._recorder.add_advantages(receipt)
            return protocol.AdvantagesComputed(do.iteration, do.groups, tuple(receipt["skipped"]))

        parts = [self._scores[group] for group in do.groups]
        name = f"g{do.groups[0]:02d}" if len(do.groups) == 1 else "all groups"
        future = self._submit(
            advantages,
            "advantages",
            f"advantages {name}",
            do.device,
            event_of,
            groups=list(do.groups),
            scores=[[scores[index] for index in sorted(scores)] for scores in parts],
        )
        self._advantages.update(dict.fromkeys(do.groups, future))

    @submit.register
    def _(self, do: protocol.Train) -> None:
        blocks, config = do.pack.blocks, self._session.config
        groups = sorted({block.fragment.group for block in blocks})
        self._sums[do.device] = self._submit(
            train_pack,
            "train",
            f"train p{do.pack.index:03d}",
            do.device,
            lambda receipt: protocol.PackTrained(do.pack),
            priority=0,
            pack=do.pack,
            version=do.version,
            num_pairs_of_update=config.samples_per_iteration * len(self._round.trained_steps),
            segments=self._segments_of(blocks),
            conditions={group: self._conditions[group] for group in groups},
            group_values=list({id(f): f for f in map(self._advantages.get, groups)}.values()),
            previous=self._sums.get(do.device),
        )

    @submit.register
    def _(self, do: protocol.Reduce) -> None:
        self._total = self._submit(
            reduce,
            "reduce",
            "reduce",
            do.device,
            lambda receipt: protocol.GradientReduced(do.iteration),
            sums=[self._sums[device] for device in do.devices],
        )

    @submit.register
    def _(self, do: protocol.Step) -> None:
        def event_of(receipt: dict[str, Any]) -> Event:
            self._recorder.add_metrics(receipt["metrics"])
            self._session.version = receipt["version"]
            self._session.hashes[receipt["version"]] = receipt["hash"]
            return protocol.Stepped(receipt["version"])

        self._session.state = self._submit(
            step,
            "step",
            f"optimizer step v{do.version + 1}",
            do.device,
            event_of,
            state=self._session.state,
            total=self._total,
            weights_dir=self._session.run_dir / "weights",
        )
        self.publish(do.device, do.version + 1)

    def publish(self, device: str, version: int) -> None:
        """Let the trainer take out of its state what a push moves."""
        self._session.published = self._submit(
            publish,
            "publish",
            f"publish v{version}",
            device,
            lambda receipt: None,
            state=self._session.state,
        )

    @submit.register
    def _(self, do: protocol.Push) -> None:
        def event_of(receipt: dict[str, Any]) -> Event:
            expected = (do.version, self._session.hashes[do.version])
            if (receipt["version"], receipt["hash"]) != expected:
                raise TaskFailedError(
                    f"{do.device} acknowledged version {receipt['version']} ({receipt['hash']}), "
                    f"but version {expected[0]} ({expected[1]}) was pushed"
                )
            return protocol.VersionLoaded(do.device, do.version)

        self._submit(
            push_weights,
            "push",
            f"push v{do.version} to {do.device}",
            do.device,
            event_of,
            policy_version=self._session.published,
        )

    def _segments_of(self, blocks: tuple[PairBlock, ...]) -> list[PrefectFuture[Any]]:
        """Return the futures that hold the transitions of some pairs, each once."""
        found = {}
        for block in blocks:
            for steps, future in self._segments[block.fragment]:
                if block.step in steps:
                    found[future.task_run_id] = future
        return list(found.values())


def _span_name(steps: range) -> str:
    if len(steps) == 1:
        return f"{steps.start:02d}"
    return f"{steps.start:02d}-{steps.stop - 1:02d}"
