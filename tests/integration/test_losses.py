"""Workers are killed, frozen, hung, added, and leave: the run ends as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Timer
from time import monotonic, sleep

import psutil
import pytest
from distributed import Client
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from smooth_rewards import HANG_VARIABLE

from digen_core.config.run import RunConfig
from digen_core.control import protocol as p
from support.layout_runs import RELATIVE
from support.pull_functions import answer_late, reach_nobody
from support.runs import distance, initial, merged, only_run, reference
from support.started import room_of, started_workers
from support.stories import Addition, Story, signal_to

pytestmark = pytest.mark.slow

JOB = {
    "num_iterations": 4,
    "rollout.prompts_per_iteration": 3,
    "rollout.num_steps": 4,
    "rollout.fragment_size": 2,
    "algorithm.clip_range": 0.01,
    "train.adam_eps": 1e-6,  # else Adam blows up the rounding of gradients that are almost 0
    "train.pack_size": 3,
    "schedule.layout": "elastic",
    "cluster.rollout_workers": 2,
    "cluster.trainer_workers": 2,
}


def event_of(kind: type, iteration: int) -> Callable[[object], bool]:
    def is_it(what: object) -> bool:
        about = getattr(what, "batch", getattr(what, "fragment", getattr(what, "pack", what)))
        return isinstance(what, kind) and getattr(about, "iteration", None) == iteration

    return is_it


FIRST_BATCH = event_of(p.BatchGenerated, 0)


def operation(*values: object):
    """Leave a case to ``make test-operation``."""
    return pytest.param(*values, marks=pytest.mark.operation)


def nightly(*values: object):
    """Leave a case to ``make test-nightly``."""
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.fixture
def live(tree, prefect_backend, follow):
    """Return a function that runs the job through a story and checks what it leaves."""
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    def run(story: Story, **changes) -> Path:
        follow(story)
        settings = {key.replace("__", "."): value for key, value in changes.items()}
        config = RunConfig.model_validate(merged(tree, {**JOB, **settings}))
        with watching(story), listening(story.see):
            report = post_train(config)
        assert story.is_done, "nothing was done to the run"
        assert report.num_iterations == config.num_iterations
        check(only_run(tree), config, report)
        return only_run(tree)

    return run


def check(folder: Path, config: RunConfig, report) -> None:
    """Compare weights, samples and rewards with the serial loop's."""
    from digen_core.checkpoints.tensors import last_state
    from digen_core.transport.samples import read_samples

    expected, state = reference(config), last_state(folder)
    assert state.version == config.num_updates
    assert distance(expected.weights, initial(config)) > 1e-4, "the weights did not move"
    assert distance(state.weights, expected.weights) < 1e-10
    assert distance(state.ema, expected.ema) < 1e-10
    rows = read_samples(folder / "samples").to_pylist()
    names = [(row["iteration"], row["group"], row["sample"]) for row in rows]
    every = range(config.num_iterations), range(3), range(4)
    assert names == [(i, g, s) for i in every[0] for g in every[1] for s in every[2]]
    assert report.after.version == config.num_updates
    kind = "transformer" if config.train.lora is None else "lora"
    assert list(folder.glob(f"{kind}/*.safetensors"))


@pytest.mark.operation
def test_two_workers_lost_at_once(live):
    """As when a host with several GPUs dies."""
    story = Story(event_of(p.PackTrained, 1), signal_to("rollout-1", "trainer-1"))
    live(story)
    assert story.said("worker rollout-1", "was lost")
    assert story.said("worker trainer-1", "was lost")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("when", "pool"), [(event_of(p.Score, 1), None), (event_of(p.FragmentScored, 1), "judges")]
)
def test_a_worker_lost_with_a_part_of_a_group(live, when, pool):
    """What it had decoded is decoded anew before the group is scored by who sees it whole."""
    story = Story(when, signal_to("rollout-1"))
    slow = {"type": "function", "function": "smooth_rewards:versus_slowly", "sees": "groups"}
    changes = {} if pool is None else {"cluster__reward_workers": {pool: 1}}
    rewards = RELATIVE | {"slow": {**slow, "pool": pool}}
    live(story, rewards=rewards, rollout__fragment_size=1, **changes)
    assert story.said("worker rollout-1", "was lost")


@pytest.mark.nightly
def test_all_rollout_workers_lost_and_back(live):
    """Nannies start them again; until then the run waits, and its state says so."""
    story = Story(event_of(p.BatchGenerated, 1), signal_to("rollout-0", "rollout-1"))
    live(story, schedule__layout="gap")
    assert story.said("waiting for a worker with the role rollout")
    assert story.said("has joined")


def phase(begins: str) -> Callable[[object], bool]:
    return lambda what: isinstance(what, str) and what.startswith(begins)


@pytest.mark.operation
@pytest.mark.parametrize("version", [2, 4])
def test_a_worker_lost_in_evaluation(live, version):
    """The one that samples: the evaluation is one task; then others do what it would have done."""
    story = Story(phase(f"evaluating version {version}"), signal_to("rollout-0"))
    live(story, evaluation__every=2)
    assert story.said("worker rollout-0", "was lost")


def version_of(kind: type, version: int) -> Callable[[object], bool]:
    return lambda what: isinstance(what, kind) and what.version == version


@pytest.mark.nightly
@pytest.mark.parametrize(
    "when",
    [
        event_of(p.Step, 1),
        operation(event_of(p.AdvantagesComputed, 2)),
        operation(event_of(p.Reduce, 1)),
        operation(version_of(p.CopyState, 2)),
        operation(version_of(p.StateCopied, 2)),
        operation(version_of(p.VersionLoaded, 2)),
        operation(event_of(p.FinishIteration, 1)),
        operation(phase("evaluating version 2")),
        operation(phase("evaluating version 4")),
    ],
    ids=["step", "advantages", "reduce", "copy", "copied", "push", "over", "evaluation", "after"],
)
def test_the_holder_of_the_optimizers_state_is_lost(live, when):
    """The run goes on from the copy, in the same iteration."""
    story = Story(when, signal_to("trainer-0"))
    live(story, evaluation__every=2)
    assert story.said("worker trainer-0", "was lost", "its copy on trainer-1")
    assert not story.said("resumed 1 time")
    assert [record.iteration for record in story.records] == list(range(4))


@pytest.mark.operation
def test_the_holder_of_the_optimizers_state_and_its_copy_are_lost(live):
    """The run resumes by itself from its last checkpoint."""
    story = Story(event_of(p.AdvantagesComputed, 2), signal_to("trainer-0", "trainer-1"))
    live(story)
    assert story.said("the optimizer's state was lost with worker trainer-0", "resumed 1 time")


class Chapters(Story):
    """One story after the other."""

    def __init__(self, *chapters: tuple[Callable[[object], bool], Callable[[Story], None]]):
        super().__init__(*chapters[0])
        self.chapters = chapters[1:]

    def see(self, what: object) -> None:
        super().see(what)
        if self.is_done and self.chapters:
            (self.when, self.do), *self.chapters = self.chapters
            self.is_done = False


@pytest.mark.operation
def test_who_followed_the_lost_holder_is_lost(live):
    """The third trainer has a copy by then."""
    story = Chapters(
        (event_of(p.PackTrained, 0), signal_to("trainer-0")),
        (lambda what: what == p.StateCopied("trainer-2", 2), signal_to("trainer-1")),
    )
    live(story, cluster__trainer_workers=3)
    assert story.said("worker trainer-0 was lost", "its copy on trainer-1")
    assert story.said("worker trainer-1 was lost", "its copy on trainer-2")
    assert not story.said("resumed 1 time")


@pytest.mark.operation
@pytest.mark.parametrize(("version", "again"), [(2, 0), (5, 3)])
def test_what_no_checkpoint_holds_is_trained_again(live, version, again):
    """All trainers die before the first checkpoint, and two updates after one."""
    from digen_core.checkpoints.manifest import checkpoints_in

    lost = signal_to("trainer-0", "trainer-1")
    story = Story(lambda what: what == p.Stepped(version), lost)
    settings = {"checkpoints__every": 3, "checkpoints__keep_last": 9}
    folder = live(story, num_iterations=7, **settings)
    # Of the second, where its loss is noticed after the first one's.
    assert story.said("the optimizer's state was lost with worker trainer-", "resumed 1 time")
    assert [path.name for path in checkpoints_in(folder / "checkpoints")] == [
        "v0003",
        "v0006",
        "v0007",
    ]
    done = [record.iteration for record in story.records]
    assert done.count(again) == 2
    assert not again or done.count(again - 1) == 1


@pytest.mark.operation
def test_the_only_trainer_is_lost_in_export(live):
    from flows import export

    story = Story(lambda what: what == "export", signal_to("trainer-0"))
    with pytest.MonkeyPatch.context() as patch:
        real = export.TaskSet.submit

        def submit(task_set, task, label, *arguments, **parameters):
            submitted = real(task_set, task, label, *arguments, **parameters)
            story.see("export" if label.startswith("export") else None)
            return submitted

        patch.setattr(export.TaskSet, "submit", submit)
        live(story, cluster__trainer_workers=1)
    assert story.said("the optimizer's state was lost with worker trainer-0", "resumed 1 time")


@pytest.mark.operation
def test_a_worker_lost_while_models_are_loaded(live):
    story = Story(lambda what: what == "loading the model on the workers", signal_to("rollout-0"))
    live(story)
    assert story.said("worker rollout-0", "was lost")


@pytest.mark.operation
def test_a_frozen_worker_is_noticed(live):
    story = Story(event_of(p.BatchGenerated, 1), signal_to("rollout-0", number=signal.SIGSTOP))
    live(story, cluster__heartbeat_timeout=5)
    assert story.said("worker rollout-0", "has sent no heartbeat for")


class Vanishing(Story):
    """All that generate are at a site that vanishes, and is there again after some seconds."""

    def __init__(self, seconds: float):
        super().__init__(event_of(p.BatchGenerated, 1), self.vanish)
        self.seconds, self.timers = seconds, []

    def vanish(self, story: Story) -> None:
        pids = [story.pid_of(name) for name in ("rollout-0", "rollout-1")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            self.timers.append(Timer(self.seconds, self.come_back, [pid]))
            self.timers[-1].start()

    def come_back(self, pid: int) -> None:
        with suppress(ProcessLookupError):  # its nanny has started another one
            os.kill(pid, signal.SIGCONT)


@pytest.mark.operation
@pytest.mark.parametrize(
    ("timeout", "seconds", "is_dropped"), [(5, 60, True), (120, 60, False)], ids=str
)
def test_a_site_that_vanishes_is_waited_for_or_dropped(live, timeout, seconds, is_dropped):
    """By ``cluster.heartbeat_timeout``: dropped, it joins again when it is back."""
    story = Vanishing(seconds)
    began = monotonic()
    live(story, schedule__layout="gap", cluster__heartbeat_timeout=timeout)
    for timer in story.timers:
        timer.join()
    assert story.said("has sent no heartbeat for") == is_dropped
    assert story.said("waiting for a worker with the role rollout") == is_dropped
    assert story.said("has joined") == is_dropped
    assert is_dropped or monotonic() - began > seconds, "nobody else generates"


@pytest.mark.nightly
@pytest.mark.parametrize("push", ["dense", operation("delta")])
def test_a_source_is_lost_before_others_pull_from_it(live, push):
    """All weights, so that a version goes from device to device."""

    def is_time(what):
        return isinstance(what, p.Push) and what.version == 2 and what.source == "rollout-0"

    story = Story(is_time, signal_to("rollout-0"))
    live(story, train__lora=None, schedule__push=push)
    assert story.said("worker rollout-0", "was lost")
    assert story.said("push of v2 to ", "does not answer")


@pytest.mark.nightly
def test_versions_come_as_deltas_past_a_loss_and_a_join(live):
    """Who joins gets all of the version in use, and deltas of those that follow."""
    story = Story(event_of(p.BatchGenerated, 1), signal_to("rollout-0", "rollout-1"))
    live(story, schedule__layout="gap", schedule__push="delta", train__lora=None)
    assert story.said("has joined")
    pushes = [own for it in story.records for own in it.spans if own.kind == "push"]
    pushes = [own for own in pushes if own.device.startswith("rollout")]
    least = 0.9 * max(own.num_bytes for own in pushes)
    whole = [own.device for own in pushes if own.num_bytes > least]
    assert whole
    assert len(whole) == len(set(whole)), "a device that had joined was sent all once more"
    assert {own.version for own in pushes if own.num_bytes < least} == {1, 2, 3, 4}


@pytest.mark.operation
def test_a_trainer_is_lost_while_its_sum_is_reduced(live):
    def is_time(what):
        return isinstance(what, p.Reduce) and what.iteration == 1 and "trainer-1" in what.devices

    story = Story(is_time, signal_to("trainer-1"))
    live(story)
    assert story.said("worker trainer-1", "was lost")


GANGS = {
    "cluster__rollout_workers": 1,
    "cluster__rollout_gang": 2,
    "cluster__trainer_gang": 2,
    "rollout__fragment_size": 2,
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("when", "member", "number"),
    [
        (p.PackTrained, "trainer-1.1", signal.SIGKILL),
        operation(p.BatchGenerated, "rollout-0.1", signal.SIGKILL),
        operation(p.BatchGenerated, "rollout-0", signal.SIGKILL),
        operation(p.PackTrained, "trainer-1", signal.SIGKILL),
        operation(p.BatchGenerated, "rollout-0.1", signal.SIGSTOP),
        operation(p.PackTrained, "trainer-1.1", signal.SIGSTOP),
        operation(p.VersionLoaded, "rollout-0.1", signal.SIGKILL),
    ],
)
def test_a_gang_is_lost_with_any_member_and_formed_again(live, when, member, number):
    def is_time(what):
        return event_of(when, 1)(what) or (isinstance(what, p.VersionLoaded) and when is type(what))

    story = Story(is_time, signal_to(member, number=number))
    shares = {"parallel__context_parallel": 2, "parallel__shard_weights": True}
    live(story, **GANGS, **shares, num_iterations=6, cluster__heartbeat_timeout=5)
    gang = member.removesuffix(".1")
    what = "was lost" if number == signal.SIGKILL else "has sent no heartbeat for"
    assert story.said(
        f"worker {gang}", what if gang == member else f"is a gang whose member {member}"
    )
    if gang == "rollout-0":  # the only one that generates
        assert story.said(f"worker {gang} has joined") or story.said("resumed 1 time")


@pytest.mark.operation
@pytest.mark.parametrize(
    ("when", "member", "number"),
    [
        (p.PackTrained, "trainer-1.1", signal.SIGKILL),
        (p.PackTrained, "trainer-1", signal.SIGKILL),
        (p.PackTrained, "trainer-1.1", signal.SIGSTOP),
        (p.BatchGenerated, "rollout-0.1", signal.SIGKILL),
    ],
)
def test_a_gang_whose_stages_are_not_all_there_is_formed_again(live, when, member, number):
    """While packs or fragments are under way, for which a stage waits for the other."""
    story = Story(event_of(when, 1), signal_to(member, number=number))
    live(story, **GANGS, parallel__stages=2, num_iterations=6, cluster__heartbeat_timeout=5)
    gang = member.removesuffix(".1")
    what = "was lost" if number == signal.SIGKILL else "has sent no heartbeat for"
    assert story.said(
        f"worker {gang}", what if gang == member else f"is a gang whose member {member}"
    )


@pytest.mark.nightly
def test_a_gang_on_two_hosts_is_formed_again(live, room):
    """Its member on the other host is killed while a stage waits for it."""
    story = Story(event_of(p.BatchGenerated, 1), signal_to("room.1"))
    cluster = {"cluster__scheduler_address": room, "cluster__trainer_workers": 1}
    live(story, **GANGS | cluster, parallel__stages=2, num_iterations=6)
    assert story.said("worker room", "is a gang whose member room.1")
    assert story.said("worker room has joined") or story.said("resumed 1 time")


def end_for_good(process: subprocess.Popen) -> Callable[[Story], None]:
    """Kill a worker and its nanny, which would start another one."""

    def end(story: Story) -> None:
        workers = psutil.Process(process.pid).children(recursive=True)
        for own in (process, *workers):
            own.kill()

    return end


@pytest.mark.parametrize(
    ("hosts", "single", "changes"),
    [
        operation(("127.0.0.2", "127.0.0.3"), "single", {"parallel__stages": 2}),
        nightly(("127.0.0.1", "127.0.0.1"), "single", {"parallel__shard_weights": True}),
        nightly(("127.0.0.2", "127.0.0.1"), "alone", {"parallel__stages": 2}),  # the room trains
    ],
)
def test_a_spare_takes_the_place_of_a_lost_member(live, monkeypatch, hosts, single, changes):
    """It is lost for good, with its nanny; it and the spare may be on other hosts than the leader.

    Where the gang has the optimizer's state the run goes on from its last checkpoint, by itself.
    """
    from tasks.cluster.presence import present_workers

    monkeypatch.setattr("tasks.cluster.presence.RESTART_SECONDS", 1.0)
    kind = p.BatchGenerated if single == "single" else p.PackTrained
    asked = room_of("127.0.0.1", hosts[0], single)
    spare = ["--host", hosts[1], "--name", "b9", "--resources", "spare:room=1"]
    with started_workers(*asked, spare) as (address, processes):
        story = Story(event_of(kind, 1), end_for_good(processes[1]))
        cluster = {"cluster__scheduler_address": address, "cluster__trainer_workers": 1}
        one_role = {"schedule__layout": "disaggregated", "num_iterations": 3}  # no others help
        live(story, **GANGS | cluster | one_role | changes)
        with Client(address, set_as_default=False) as client:
            (holder,) = (own for own in present_workers(client).values() if own.name == "b9")
    assert holder.place == "room.1"
    assert story.said("worker room", "is a gang whose member room.1", "was lost")
    assert story.said("the spare b9", "has the place of room.1 in the gang room")
    assert story.said("resumed 1 time" if kind is p.PackTrained else "worker room has joined")
    assert story.run_context.fleet.followers == {"room": {"room.1": holder.address}}
    device_of = {span.kind: span.device for span in story.records[-1].spans}
    assert device_of["train" if kind is p.PackTrained else "denoise"] == "room"


@pytest.mark.nightly
def test_a_spare_unlike_its_gang_is_left_out_and_another_one_has_its_place(live, monkeypatch):
    """It sees a GPU, and the others none. It would end the run, or keep the gang out of it."""
    from tasks.cluster.presence import present_workers

    monkeypatch.setattr("tasks.cluster.presence.RESTART_SECONDS", 1.0)
    spares = [["--name", name, "--resources", "spare:room=1"] for name in ("b8", "b9")]
    asked = room_of("127.0.0.1", "127.0.0.1")
    with started_workers(*asked, *spares) as (address, processes):
        story = Story(event_of(p.BatchGenerated, 1), end_for_good(processes[1]))
        cluster = {"cluster__scheduler_address": address, "cluster__trainer_workers": 1}
        with Client(address, set_as_default=False) as client:
            (odd,) = (own.address for own in present_workers(client).values() if own.name == "b8")
            client.run(see_a_gpu, workers=[odd])
        live(story, **GANGS | cluster, schedule__layout="disaggregated", parallel__stages=2)
        with Client(address, set_as_default=False) as client:
            there = {own.name: own for own in present_workers(client).values()}
    assert (there["b8"].place, there["b9"].place) == ("", "room.1")
    assert story.said(
        "the spare b8 is left out of the gang room until", "sees no GPU, but member 1"
    )
    assert story.said("the spare b9", "has the place of room.1 in the gang room")
    assert story.said("worker room has joined")
    assert not story.said("could not join")


def see_a_gpu():
    """Have this worker say that it computes on a GPU."""
    from tasks.gang import forming

    forming.card = lambda: "GPU-8"


def in_update(number: int, kind: type, iteration: int) -> Callable[[object], bool]:
    """Tell a pack of one of an iteration's updates."""
    is_event = event_of(kind, iteration)
    return lambda what: is_event(what) and what.pack.blocks[0].update == number


LAGGING = {"algorithm": {"type": "diffusion_nft", "old_policy_decay": "ramp"}}


@pytest.mark.parametrize(
    ("layout", "name", "algorithm"),
    [
        operation("elastic", "trainer-0", {}),
        operation("gap", "trainer-1", {}),
        operation("elastic", "rollout-0", {}),
        operation("tag", "trainer-0", LAGGING),
    ],
)
def test_a_worker_is_lost_between_two_updates(live, layout, name, algorithm):
    """The holder, in the second of three: the first one is made, and is not made again.

    What generated when the iteration began is still what losses compare with.
    """
    story = Story(in_update(1, p.PackTrained, 1), signal_to(name))
    updates = {"train__updates_per_iteration": 3, "train__dealt_by": "samples"}
    live(story, **updates, **algorithm, schedule__layout=layout)
    assert story.said(f"worker {name}", "was lost")


@pytest.mark.operation
@pytest.mark.parametrize("train", [{}, {"train__lora": None}], ids=["adapters", "all weights"])
def test_the_gang_that_holds_the_optimizers_state_loses_a_member(live, train):
    """Its rows of the state are read again, from the files of all members."""
    story = Story(event_of(p.AdvantagesComputed, 2), signal_to("trainer-0.1"))
    live(story, **GANGS, **train, parallel__shard_weights=True)
    assert story.said("the optimizer's state was lost with worker trainer-0", "resumed 1 time")


@pytest.mark.operation
def test_a_task_that_hangs_is_given_to_others(live, tmp_path, monkeypatch):
    monkeypatch.setenv(HANG_VARIABLE, str(tmp_path / "hung"))
    story = Story(event_of(p.BatchGenerated, 0), lambda story: None)
    rewards = {"smooth_rewards:brightness": 1.0, "smooth_rewards:hangs_once": 1.0}
    live(story, rewards=rewards, cluster__task_timeout=12)
    assert story.said("has been at 'score", "far longer than it should take")
    assert story.said("has been at 'score", "left:")


@pytest.mark.operation
def test_a_worker_is_added(live):
    """It loads, gets the version, and works from the next iteration on at the latest."""
    story = Addition(FIRST_BATCH)
    live(story, num_iterations=8)
    assert story.said("worker rollout-9 has joined")
    joined = next(own for own in story.records if own.metrics["workers/joined"])
    worked = next(own for own in story.records if any(s.device == "rollout-9" for s in own.spans))
    assert worked.iteration <= joined.iteration + 1


class Unreached(Addition):
    """A worker comes that reaches no other one."""

    def hold(self, newcomer) -> None:
        from tasks.cluster.calls import on_worker

        super().hold(newcomer)
        on_worker(self.run_context.client, newcomer.worker.address, reach_nobody)


@pytest.mark.operation
def test_a_worker_that_comes_and_can_load_no_version_is_left_out(live):
    story = Unreached(FIRST_BATCH)
    live(story, num_iterations=8)
    assert story.said("worker rollout-9", "could not join", "cannot be pushed", "does not answer")
    assert (story.run_context.fleet.num_left, story.run_context.fleet.num_lost) == (1, 0)


class Late(Addition):
    """A worker comes over a slow link; meanwhile the others make another version, and it is time.

    So an iteration is over when that one has its version, and the next one's update is made.
    """

    limit_version: int | None = None  # that was made when the limit was reached

    def hold(self, newcomer) -> None:
        from tasks.cluster.calls import on_worker

        super().hold(newcomer)
        on_worker(self.run_context.client, newcomer.worker.address, answer_late, 3.0)

    def see(self, what: object) -> None:
        super().see(what)
        if self.limit_version is None and isinstance(what, p.Stepped):
            progress = self.run_context.progress
            if progress.num_iterations < what.version - 1:  # the one before is not over
                progress.spent, self.limit_version = 1e6, what.version


@pytest.mark.operation
def test_a_limit_that_is_reached_while_a_worker_joins_costs_no_iteration(
    tree, prefect_backend, follow
):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    story = Late(FIRST_BATCH)
    follow(story)
    limit = {"max_cost": 1e5, "cluster.price_per_hour": {"cpu": 1.0}, "num_iterations": 8}
    config = RunConfig.model_validate(merged(tree, {**JOB, **limit}))
    with watching(story), listening(story.see):
        report = post_train(config)
    assert story.said("worker rollout-9 has joined")
    assert not story.said("the run goes on from")
    assert report.version == report.num_iterations == len(story.records) == story.limit_version


class Leaving(Story):
    """Workers are asked to leave; the run is slowed until they have."""

    def __init__(self, *names: str):
        super().__init__(FIRST_BATCH, self.ask)
        self.names = names

    def ask(self, story: Story) -> None:
        from tasks.cluster.leaving import ask_to_leave

        for name in self.names:
            ask_to_leave(self.run_context.client, self.run_context.fleet.addresses[name])

    def see(self, what: object) -> None:
        super().see(what)
        if isinstance(what, p.BatchGenerated) and not self.have_left:
            sleep(0.3)  # a look comes every three seconds, and this run takes little more

    @property
    def have_left(self) -> bool:
        return all(self.said(f"worker {name} has left") for name in self.names)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("names", "changes"),
    [
        (("rollout-1", "trainer-0"), {}),
        operation(("trainer-1",), {"schedule__layout": "tag"}),
        operation(("rollout-0",), {"schedule__layout": "gap"}),
        operation(("trainer-0",), {"train__lora": None}),
        operation(("worker-0", "worker-3"), {"schedule__layout": "colocated"}),
        operation(("rollout-1",), {"rewards": RELATIVE}),
    ],
)
def test_workers_leave(live, names, changes):
    """They finish what they have begun: nothing is generated, trained or scored twice."""
    story = Leaving(*names)
    live(story, num_iterations=8, **changes)
    assert story.have_left
    assert not story.warnings
    assert story.run_context.fleet.num_left == len(names)
    spans = [span for record in story.records for span in record.spans]
    last = {span.device for span in story.records[-1].spans}
    assert last.isdisjoint(names)
    steps = [
        (span.iteration, span.group, span.fragment, step)
        for span in spans
        if span.kind == "denoise"
        for step in range(span.first_step, span.end_step)
    ]
    assert len(steps) == len(set(steps)) == 8 * 3 * 2 * 4
    packs = [(span.iteration, span.task) for span in spans if span.kind == "train"]
    assert len(packs) == len(set(packs))
    scored = [(s.iteration, s.group, s.fragment) for s in spans if s.kind == "score"]
    num_groups = 8 * 3 if "rewards" in changes else 0  # that are scored when all fragments are
    assert len(scored) == len(set(scored)) == 8 * 3 * 2 + num_groups


@pytest.fixture
def looked_at_often(monkeypatch):
    """The cluster of a run, whose iterations take less than the time between two looks at it."""
    monkeypatch.setattr("flows.runtime.fleet.watch.LOOK_SECONDS", 0.3)


@pytest.mark.operation
def test_a_worker_turns_to_the_other_role(live, looked_at_often, monkeypatch):
    """The roles are planned again, as workers have come and training is what is waited for."""

    def seconds_of_trainers(devices, *rest):
        return 1.0 / sum("trainer" in device.roles for device in devices)

    monkeypatch.setattr("flows.runtime.fleet.roles.predicted_seconds", seconds_of_trainers)
    story = Addition(FIRST_BATCH, {"rollout": 1, "trainer": 1})
    changes = {"cluster__rollout_workers": 3, "cluster__trainer_workers": 1}
    live(story, num_iterations=12, schedule__layout="tsp", **changes)
    assert story.said("worker rollout-9 turns to the work of a trainer")
    spans = [span for record in story.records for span in record.spans]
    trained = [span for span in spans if span.device == "rollout-9" and span.kind == "train"]
    assert trained
    packs = [(span.iteration, span.task) for span in spans if span.kind == "train"]
    assert len(packs) == len(set(packs))


@pytest.mark.operation
@pytest.mark.parametrize("layout", ["elastic", "gap"])
def test_workers_turn_again_and_again(live, looked_at_often, monkeypatch, layout):
    """In a layout with help a worker keeps its model, and loads a version that it holds already."""
    monkeypatch.setattr("flows.runtime.fleet.roles.GAIN", -99.0)
    story = Addition(FIRST_BATCH, {"rollout": 1, "trainer": 1})
    live(story, num_iterations=16, schedule__layout=layout)
    turned = [text for text in story.phases if text.startswith("worker rollout-9 turns to")]
    assert len(turned) >= 2
    assert {"trainer" in text for text in turned} == {True, False}


@pytest.mark.operation
def test_a_run_that_ends_waits_for_no_newcomer(live, monkeypatch, caplog):
    """That is no failure of the flow run in which it was made ready."""
    newcomers = []

    def load_for_ever(run, batch, devices):
        while True:
            newcomers[0].check(run)
            sleep(0.05)

    monkeypatch.setattr("flows.runtime.fleet.joining.load_models", load_for_ever)
    story = Addition(FIRST_BATCH)
    monkeypatch.setattr(story, "hold", newcomers.append)
    live(story, num_iterations=8)
    assert newcomers
    assert not newcomers[0].thread.is_alive()
    assert not story.said("rollout-9")
    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name={"any_": [f"{story.run_context.run_id}-join-rollout-9"]})
        found = client.read_flow_runs(flow_run_filter=named)
    told = "the worker was lost, or the run has ended"
    assert [(run.state_name, run.state.message) for run in found] == [("Cancelled", told)]
    assert "Traceback" not in caplog.text


@pytest.fixture
def own_cluster(tmp_path):
    """A scheduler and its two workers, as processes: the address and the scheduler's process."""
    file = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen:
            process = subprocess.Popen([sys.executable, "-m", *command], env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        where = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        scheduler = start("distributed.cli.dask_scheduler", *where, "--no-dashboard")
        deadline = monotonic() + 100
        while not file.exists() or not file.read_text():
            assert monotonic() < deadline
            sleep(0.1)
        address = json.loads(file.read_text())["address"]
        for role in ("rollout", "trainer"):
            start(
                "tasks.worker.process", address, "--name", f"{role}-0", "--resources", f"{role}=1"
            )
        with Client(address) as client:
            client.wait_for_workers(2, timeout=100)
        yield address, scheduler


@pytest.mark.operation
def test_a_lost_scheduler_is_said_and_the_run_can_be_resumed(
    tree, prefect_backend, follow, own_cluster
):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching
    from tasks.cluster.calls import SchedulerLostError

    address, scheduler = own_cluster
    story = Story(event_of(p.PackTrained, 2), lambda story: scheduler.kill())
    follow(story)
    config = RunConfig.model_validate(
        merged(tree, {**JOB, "cluster.scheduler_address": address, "schedule.layout": "gap"})
    )
    lost = pytest.raises(SchedulerLostError, match="the Dask scheduler")
    with watching(story), listening(story.see), lost as error:
        post_train(config)
    folder = only_run(tree)
    assert f"resume it with: digen train --resume {folder}" in "".join(error.value.__notes__)
    config = RunConfig.model_validate(merged(tree, JOB))
    check(folder, config, post_train(config, str(folder)))
