"""Turn the controller's instructions into Prefect tasks, and their completions into its events.

A task's result stays on the worker that made it; the executor holds futures, which become edges of
the Dask graph, and reads only receipts: seconds, rewards, hashes.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from prefect.futures import PrefectFuture

from digen_core.control import protocol
from digen_core.control.protocol import Event, Instruction
from flows.runtime.conditions import Conditions
from flows.runtime.context import RunContext
from flows.runtime.fleet.loading import roles_of
from flows.runtime.fleet.task_set import note_broken_gang, require_no_culprit
from flows.runtime.generation import Denoising
from flows.runtime.iterations.open_iteration import OpenIteration, once
from flows.runtime.iterations.screening import screen
from flows.runtime.notify import (
    notify_of_dropped_group,
    notify_of_skipped_update,
    notify_of_smaller_packs,
)
from flows.runtime.scoring import Scoring
from flows.runtime.submission import Submitter, Work
from flows.runtime.versions import Versions
from tasks.emulation import switch
from tasks.receipts import NOT_SHARED, Receipt, Reduced, Trained, Updated
from tasks.runner.completions import Completion
from tasks.train import reduce, share_sum, train_pack
from tasks.versions import step


class Executor:
    """What the iterations of a run that are open have under way, and what they made."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._iterations: dict[int, OpenIteration] = {}
        self._submitter = Submitter(run)
        self._conditions = Conditions(run.config, self._submitter)
        self._num_switches = 0
        self._reward_history = run.progress.reward_history
        self._denoising = Denoising(run, self._submitter, self._conditions)
        self._scoring = Scoring(run, self._submitter)
        self._versions = Versions(run, self._submitter, run.config.num_behind)

    @property
    def num_running(self) -> int:
        """Number of submitted tasks whose end was not seen yet."""
        return self._submitter.num_running

    def encode_ahead(self, iteration: OpenIteration) -> None:
        """Have the prompts of an iteration embedded before it begins."""
        self._conditions.encode_ahead(iteration, self._run.fleet.rollout_devices())

    def open(self, iteration: OpenIteration) -> None:
        """Take instructions for an iteration from now on."""
        self._iterations[iteration.index] = iteration

    def close(self, index: int) -> OpenIteration:
        """Return an iteration that is over, and drop what it made."""
        iteration = self._iterations.pop(index)
        self._versions.close(iteration)
        return iteration

    def stop(self) -> None:
        """Wait for no task any more, as the run ends, or goes back to a checkpoint."""
        self._submitter.stop()

    def is_running(self, iteration: OpenIteration) -> bool:
        """Say whether a task was submitted in an iteration's flow run whose end was not seen."""
        return self._submitter.is_running(iteration)

    def events_of(self, completion: Completion) -> list[Event]:
        """Return what the end of a task means to the controller.

        Raises:
            TaskFailedError: the task failed.
            WorkerLostError: its worker is gone.
        """
        return self._submitter.events_of(completion)

    def note_failure(self, completion: Completion) -> None:
        """Let the next look find a device lost if its gang is broken.

        Raises:
            UserError: the task failed because of what the user asked for.
            DamagedError: because a checkpoint is damaged.
        """
        if device := self._submitter.device_of(completion):
            require_no_culprit(completion)
            note_broken_gang(self._run, completion, device)

    @property
    def is_open(self) -> bool:
        """Whether an iteration is open."""
        return bool(self._iterations)

    def is_ready(self, device: str) -> bool:
        """Say whether a device has loaded all versions that were pushed to it."""
        return self._versions.is_loaded(device) and not self._submitter.is_pushing(device)

    def forget(self, devices: Collection[str]) -> None:
        """Drop what lost devices held, and what they were doing."""
        self._submitter.forget(devices)
        self._conditions.forget(devices)
        self._denoising.forget(devices)
        self._scoring.forget(devices)
        self._versions.forget(devices)
        for iteration in self._iterations.values():
            reduction = iteration.reduction
            if reduction and not set(devices).isdisjoint((*reduction.devices, reduction.device)):
                iteration.reduction = iteration.total = None
            for device in devices:
                iteration.sums.pop(device, None)

    def take_over(self) -> None:
        """Go on from the state that another device has now."""
        self._versions.take_over(self._iterations[max(self._iterations)])

    def submit(self, instruction: Instruction) -> None:  # noqa: C901 - a row for each kind
        """Submit the tasks of one instruction."""
        match instruction:
            case protocol.Generate():
                self._generate(instruction)
            case protocol.Pause(batch):
                self._denoising.pause(batch)
            case protocol.Score():
                self._score(instruction)
            case protocol.Train():
                self._train(instruction)
            case protocol.Reduce():
                self._reduce(instruction)
            case protocol.Step():
                self._step(instruction)
            case protocol.CopyState():
                self._versions.copy(instruction, self._iterations[max(self._iterations)])
            case protocol.Push():
                self._versions.push(instruction, self._iterations[max(self._iterations)])
            case protocol.Switch():
                self._switch(instruction)
            case _:
                raise TypeError(f"no task does {instruction}")

    # --- generation -----------------------------------------------------------------------

    def _generate(self, do: protocol.Generate) -> None:
        self._denoising.begin(self._iterations[do.batch.iteration], do)

    def _score(self, do: protocol.Score) -> None:
        self._scoring.begin(self._iterations[do.fragment.iteration], do)

    # --- training -------------------------------------------------------------------------

    def compute_advantages(self, do: protocol.ComputeAdvantages) -> Event:
        """Centre and scale the rewards of groups here: a task would cost more than it does.

        Or choose among candidates, if they are theirs.
        """
        it = self._iterations[do.iteration]
        if it.round.screens(do.groups[0]):
            return screen(self._run, it, do.groups[0])
        nonfinite = {group for group in do.groups if it.recorder.nonfinite_in(group)}
        settled = {group: it.recorder.rewards_of(group) for group in do.groups}
        columns = {group: own for group, own in settled.items() if group not in nonfinite}
        prompts = {group: it.round.prompts[group].key for group in do.groups}
        history = self._reward_history
        step_values = None
        if self._run.config.asks_of_steps:
            step_values = {group: it.recorder.step_values_of(group) for group in columns}
        workers = self._run.workers
        found = workers.advantages(columns, prompts, history, step_values, nonfinite)
        it.recorder.add_dropped(found.dropped)
        for group in sorted(found.dropped):
            notify_of_dropped_group(self._run, it.index, group, it.recorder.nonfinite_in(group))
        successors = {group: it.round.successor_of(group) for group in found.skipped}
        replaced = tuple((old, new) for old, new in successors.items() if new is not None)
        if replaced:
            it.recorder.add_replaced([old for old, _ in replaced])
            return protocol.GroupsReplaced(do.iteration, replaced)
        self._reward_history = found.history
        it.advantages.update(found.values)
        it.recorder.add_advantages(found)
        chosen = tuple(found.chosen.get(g, ()) for g in do.groups) if found.chosen else ()
        return protocol.AdvantagesComputed(do.iteration, do.groups, found.skipped, chosen)

    def _train(self, do: protocol.Train) -> None:
        it, pack = self._iterations[do.pack.iteration], do.pack
        groups = sorted({block.fragment.group for block in pack.blocks})
        it.update = pack.blocks[0].update
        encoder = self._encoder_for(do.device)
        held = [self._conditions.of(it, group, encoder) for group in groups]

        def event_of(receipt: Receipt[Trained]) -> Event:
            if not receipt.facts.too_large:
                return protocol.PackTrained(pack)
            notify_of_smaller_packs(self._run, do.device, pack.num_pairs)
            return protocol.PackTooLarge(pack)

        work = Work(
            body=train_pack,
            label=f"train p{pack.index:03d}",
            device=do.device,
            kind="train",
            about={"version": do.version, "num_items": pack.num_pairs, "cost": pack.cost},
            parameters={
                "pack": pack,
                "version": do.version,
                "segments": it.segments_of(pack.blocks, only_last=self._run.config.trains_clean),
                "conditions": once(held),
                "keys": {group: self._conditions.key_of(it, group) for group in groups},
                "advantages": {group: it.advantages[group] for group in groups},
                "previous": it.sums.get(do.device),
                "trained_from": do.version if it.trained_from is None else it.trained_from,
                "run_dir": self._run.shared_dir,
            },
            event_of=event_of,
            priority=0,
        )
        it.sums[do.device] = self._submitter.submit(it, work)

    def _encoder_for(self, device: str) -> str:
        """Return who embeds a prompt for a device, if its condition is gone with who made it."""
        fleet = self._run.fleet
        generates = "rollout" in roles_of(self._run, fleet.known[device])
        return device if generates else [*fleet.rollout_devices(), device][0]

    def _reduce(self, do: protocol.Reduce) -> None:
        it, fleet = self._iterations[do.iteration], self._run.fleet
        sites = {name: fleet.known[name].site for name in (do.device, *do.devices)}
        pulled = do.pulled(sites)
        firsts = [own[0] for own in pulled]

        def event_of(receipt: Receipt[Reduced]) -> Event | None:
            if it.reduction is do and not receipt.facts.failure:
                return protocol.GradientReduced(do.iteration)
            return self._failure_of(it, do, firsts, receipt)

        it.reduction = do
        work = Work(
            body=reduce,
            label="reduce",
            device=do.device,
            kind="reduce",
            parameters={
                "own": it.sums.get(do.device),
                "others": [self._share(do, own) for own in pulled],
                "sources": [fleet.workers_of(device) for device in firsts],
            },
            event_of=event_of,
        )
        it.total = self._submitter.submit(it, work)

    def _share(self, do: protocol.Reduce, devices: Sequence[str]) -> PrefectFuture[Any]:
        """Have a device keep its sum, with those of others, where another one pulls it from."""
        it, fleet = self._iterations[do.iteration], self._run.fleet
        device, *rest = devices
        work = Work(
            body=share_sum,
            label=f"share sums of {fleet.known[device].site}" if rest else f"share sum of {device}",
            device=device,
            kind="reduce",
            parameters={
                "total": it.sums[device],
                "others": [self._share(do, [own]) for own in rest],
                "sources": [fleet.workers_of(own) for own in rest],
            },
            event_of=partial(self._failure_of, it, do, rest),
        )
        return self._submitter.submit(it, work)

    def _failure_of(
        self,
        it: OpenIteration,
        do: protocol.Reduce,
        others: Sequence[str],
        receipt: Receipt[Reduced],
    ) -> Event | None:
        """Take note of a device whose sum was not to be had; None: all were, or it is told of."""
        failed, failure = receipt.facts.failed, receipt.facts.failure
        if it.reduction is not do or failure in ("", NOT_SHARED):  # void: a device was lost since
            return None
        why = f"does not give away its sum of gradients: {failure}"
        if address := self._run.fleet.addresses.get(others[failed]):  # else it is taken out already
            self._run.watch.broken(address, why)
        return protocol.ReduceFailed(do.iteration)

    # --- versions -------------------------------------------------------------------------

    def _step(self, do: protocol.Step) -> None:
        it, version = self._iterations[do.iteration], do.version + 1
        if it.trained_from is None:
            it.trained_from = do.version
        if it.reward_history is None:  # else it is stepped again, and a next iteration has added
            it.reward_history = self._reward_history

        def event_of(receipt: Receipt[Updated]) -> Event:
            if receipt.facts.skipped:
                it.drop_sums()
                it.recorder.skip_update()
                if not it.recorder.has_updated:
                    it.reward_history = None
                self._run.progress.not_stepped(version)
                notify_of_skipped_update(self._run, it.index, receipt.facts.skipped)
                return protocol.UpdateSkipped(it.index, version)
            self._versions.stepped(it, receipt.facts)
            return protocol.Stepped(version)

        work = Work(
            body=step,
            label=f"optimizer step v{version}",
            device=do.device,
            kind="step",
            about={"version": version},
            parameters={
                "state": self._run.progress.state,
                "total": it.total,
                "trained_from": it.trained_from,
                "is_last": it.update + 1 == self._run.config.train.updates_per_iteration,
            },
            event_of=event_of,
        )
        self._run.progress.stepping(self._submitter.submit(it, work))
        self.publish(it, do.device, version)

    def publish(self, it: OpenIteration, device: str, version: int) -> None:
        """Let the trainer take out of its state what a push moves."""
        self._versions.publish(it, device, version)

    def _switch(self, do: protocol.Switch) -> None:
        self._num_switches += 1
        work = Work(
            body=switch,
            label=f"switch {do.device} to {do.role}",
            device=do.device,
            kind="switch",
            parameters={"role": do.role, "number": self._num_switches},
            event_of=lambda receipt: protocol.Switched(do.device, do.role),
        )
        newest = self._iterations[max(self._iterations)]  # it outlives the switch
        self._submitter.submit(newest, work)
