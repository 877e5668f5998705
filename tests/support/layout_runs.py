"""Runs of one small job under any layout, on four shared workers, and what their spans show."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from prefect import flow

from digen_core.config.run import RunConfig
from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.records import IterationRecord, Span
from support.runs import TOLERANCE, Watch, distance, initial, merged, reference

if TYPE_CHECKING:
    from digen_core.reference.loop import SerialRun

MAX_WORKERS = 4
JOB = {
    "num_iterations": 3,
    "rewards": {"smooth_rewards:brightness": 1.0},
    "rollout.prompts_per_iteration": 3,
    "rollout.group_size": 4,
    "rollout.num_steps": 4,
    "algorithm.trained_fraction": 0.5,
    "algorithm.clip_range": 0.01,
    "train.adam_eps": 1e-6,  # else Adam blows up the rounding of gradients that are almost 0
}

NOT_SERIAL: dict[str, Any] = {
    **dict.fromkeys(("evaluation", "cluster", "schedule", "tracking"), True),
    "prompts": {"train", "evaluation"},
    "rollout": {"fragment_size", "batch_size", "steps_per_task"},
    "train": {"pack_size"},
}
"""Keys of a config that the serial loop does not read, or that only name this test's folder."""


@dataclass(frozen=True)
class Case:
    """A layout and how the work is cut, placed and disturbed."""

    layout: LayoutName
    workers: tuple[int, ...]  # (rollout, trainers), or (both,) in a colocated layout
    fragment: int = 2
    pack: int = 3
    helping: bool = False
    pauses: bool = False
    dtype: str = "float64"
    share: float | None = None  # of stale groups
    steps_per_task: int = 1

    def __str__(self) -> str:
        return "-".join(
            [
                self.layout + (f"{self.share:.0%}" if self.share else ""),
                "+".join(map(str, self.workers)),
                f"f{self.fragment}p{self.pack}",
                self.dtype,
                *(["helping"] if self.helping else []),
                *(["pauses"] if self.pauses else []),
            ]
        )

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes in the config."""
        return {
            "schedule.layout": self.layout,
            "schedule.helpers": MAX_WORKERS if self.helping else 0,
            "schedule.assistants": MAX_WORKERS if self.helping else 0,
            "schedule.max_stale_share": self.share,
            "rollout.fragment_size": self.fragment,
            "rollout.steps_per_task": self.steps_per_task,
            "train.pack_size": self.pack,
            "model.dtype": self.dtype,
        }

    @property
    def devices(self) -> list[p.Device]:
        """The workers of the shared cluster, in the roles of this case."""
        both: list[p.Role] = ["rollout", "trainer"]
        if LAYOUTS[self.layout].colocated:
            roles = [both] * self.workers[0]
        else:
            roles = [both[:1]] * self.workers[0] + [both[1:]] * self.workers[1]
        return [p.Device(f"worker-{i}", frozenset(own)) for i, own in enumerate(roles)]


class DisturbedController(Controller):
    """Pauses batches at random, or has something done when an event has come."""

    pause_odds = 0.0
    begins_with_two = False  # with the first iterations offered at once, whatever opens slowly
    after_event: Callable[[p.Event], None] = staticmethod(lambda event: None)
    num_paused = 0  # batches that stopped before their last step, of the last controller made

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._random = Random(0)
        self._running: dict[p.Batch, str] = {}
        self._held: list[p.Event] = []
        type(self).num_paused = 0

    def handle(self, event: p.Event) -> list[p.Instruction]:
        if self.begins_with_two and isinstance(event, p.IterationOffered) and event.iteration == 0:
            self._held.append(event)
            return []
        if isinstance(event, p.BatchGenerated | p.BatchPaused):
            del self._running[event.batch]
            type(self).num_paused += isinstance(event, p.BatchPaused)
        if isinstance(event, p.DevicesLost):
            gone = event.devices
            self._running = {own: name for own, name in self._running.items() if name not in gone}
        instructions = []
        for each in [*self._held, event]:
            instructions += super().handle(each)
        self._held = []
        begun = [do for do in instructions if isinstance(do, p.Generate)]
        self._running.update({do.batch: do.device for do in begun})
        if self._running and self._random.random() < self.pause_odds:
            instructions += [p.Pause(*running) for running in self._running.items()]
        self.after_event(event)
        return instructions


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    config: RunConfig
    folder: Path
    devices: list[p.Device]
    records: list[IterationRecord]
    num_paused: int

    @property
    def spans(self) -> list[Span]:
        """What ran where."""
        return [span for record in self.records for span in record.spans]

    def num_by_others(self, kind: str, home: str) -> int:
        """Number of tasks of a kind on devices whose only role is the other one."""
        others = {device.name for device in self.devices if home not in device.roles}
        return sum(span.kind == kind and span.device in others for span in self.spans)

    def samples(self) -> list[dict[str, Any]]:
        """The samples on disk."""
        from digen_core.transport.samples import read_samples

        found: list[dict[str, Any]] = read_samples(self.folder / "samples").to_pylist()
        return found

    def versions(self) -> dict[tuple[int, int], int]:
        """(iteration, group) -> the policy version that generated it."""
        found: dict[tuple[int, int], set[int]] = defaultdict(set)
        for row in self.samples():
            found[row["iteration"], row["group"]].add(row["policy_version"])
        return {group: version for group, (version,) in found.items()}


def run_case(
    case: Case, tree: dict[str, Any], address: str, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> Run:
    """Run the job as a case says, with a controller that may disturb it."""
    from flows.runtime.fleet.joining import new_workers
    from flows.runtime.observers import watching

    settings = {**JOB, **case.changes, **changes, "cluster.scheduler_address": address}
    config = RunConfig.model_validate(merged(tree, settings))
    monkeypatch.setattr("flows.launch.devices_of", lambda client, colocated: case.devices)
    names = {device.name for device in case.devices}  # others of the cluster do not join
    monkeypatch.setattr(
        "flows.runtime.fleet.joining.new_workers",
        lambda *known: [worker for worker in new_workers(*known) if worker.name in names],
    )
    monkeypatch.setattr("flows.runtime.conductor.Controller", DisturbedController)
    monkeypatch.setattr(DisturbedController, "pause_odds", 0.5 if case.pauses else 0.0)
    monkeypatch.setattr(DisturbedController, "begins_with_two", bool(case.share))
    watch = Watch()
    with watching(watch):
        folder = train_only(config)
    return Run(config, folder, case.devices, watch.records, DisturbedController.num_paused)


@flow(name="train only", validate_parameters=False)
def train_only(config: RunConfig) -> Path:
    """Do what post_train does, without evaluations and export; return the run's folder."""
    from flows.launch import open_run
    from flows.prepare import prepare
    from flows.runtime.subflows import on_cluster

    with open_run(config) as run:
        with on_cluster(run, prepare) as conductor:
            for index in range(config.num_iterations):
                conductor.complete(index, last=config.num_iterations - 1)
        return run.run_dir


def marked(cases: Sequence[Any], quick: tuple[int, ...], mark: str) -> list[Any]:
    """Leave all but a few cases to the make target of a mark."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if place in quick else [getattr(pytest.mark, mark)],
        )
        for place, case in enumerate(cases)
    ]


BOTH: frozenset[p.Role] = frozenset({"rollout", "trainer"})
HUGE: dict[str, Any] = {
    "rewards": {"smooth_rewards:sometimes_huge": 1e290},  # others are far above adam_eps
    "algorithm.advantage_scale": "none",
    "algorithm.max_advantage": 1e305,
    "numerics.updates": "skip",
    "num_iterations": 5,
}
"""Changes of a config by which updates overflow, and are skipped."""
ODD = {
    **HUGE,
    "rewards": {
        **HUGE["rewards"],
        "odd": {
            "type": "function",
            "function": "smooth_rewards:sometimes_none",
            "on_failure": "drop",
        },
    },
    "rollout.refill": 1,
}
"""Changes of a config by which groups are dropped, and updates skipped."""

RELATIVE = {
    "smooth_rewards:brightness": {"weight": 0.0},
    "picks": {"type": "ranked", "of": "smooth_rewards:brightness", "weight": 0.5},
    "smooth_rewards:versus": {"sees": "groups"},
}
"""Rewards that compare the samples of a group, and one whose scores are ranked."""


def check_skips(run: Run) -> None:
    """Check that groups were dropped, updates skipped, and the others those of the serial loop."""
    metrics = [record.metrics for record in run.records]
    skipped = sum(found["numerics/skipped_updates"] for found in metrics)
    assert sum(found["numerics/dropped_groups"] for found in metrics) > 0
    assert 0 < skipped < 5
    check_weights(run, version=5 - int(skipped))


@cache
def serial_runs() -> dict[tuple[object, ...], "SerialRun"]:
    """What the serial loop made, by what it depends on: layouts and cuts are not its business."""
    return {}


def check_weights(run: Run, tolerance: float | None = None, *, version: int = 3) -> "SerialRun":
    """Compare with the serial loop that generates with the run's versions, and return that.

    The largest difference relative to the largest weight is below ``tolerance``; None: that of the
    model's dtype. The run ended at ``version``.
    """
    from digen_core.checkpoints.tensors import last_state

    versions, config = run.versions(), run.config
    key = (config.model_dump_json(exclude=NOT_SERIAL), tuple(sorted(versions.items())))
    if key not in serial_runs():
        serial_runs()[key] = reference(config, version_of=lambda *group: versions[group])
    serial = serial_runs()[key]
    state = last_state(run.folder)
    assert state.version == version
    assert distance(serial.weights, initial(config)) > 1e-3, "the weights did not move"
    bound = tolerance or TOLERANCE[config.model.dtype]
    assert (found := distance(state.weights, serial.weights)) < bound, found
    assert distance(state.ema, serial.ema) < bound
    return serial
