"""Have whole groups scored, by rewards that see one, once all their fragments are decoded.

The controller hears of no fragment of a group before that. So if a device is lost that holds some
of its samples, those are waited for: they are generated, decoded and scored anew, and so is the
group. Which device a fragment is made on, and how groups are cut into fragments, makes no
difference.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prefect.futures import PrefectFuture

from digen_core.config.rewards import RewardConfig, that_see
from digen_core.config.rewards.servers import ServerReward
from digen_core.control.protocol import Fragment, FragmentScored
from digen_core.data.prompts import Prompt
from flows.runtime.context import RunContext
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.notify import notify
from flows.runtime.submission import URGENT, Submitter, Work
from tasks.receipts import Receipt, Scored
from tasks.score import Pool, score_group

Columns = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A fragment that was told to be decoded, and what its device and pools said of it."""

    device: str
    samples: PrefectFuture[Any]
    receipt: Receipt[Scored] | None = None  # None: not all of them have said it


@dataclass(slots=True)
class _Group:
    """A group of which no fragment is scored to the end."""

    parts: dict[Fragment, _Decoded] = field(default_factory=dict)
    asked: int = 0  # how often it was told to be scored
    columns: list[Columns] = field(default_factory=list)  # of those that have scored it


class GroupScoring:
    """The groups that rewards see as a whole."""

    def __init__(self, run: RunContext, submitter: Submitter) -> None:
        self._run, self._submitter = run, submitter
        self._by: list[Pool | None] = [*Pool.that_see("groups", run.config)]
        if that_see(run.config.rewards_of(None), "groups"):
            self._by.insert(0, None)
        self._groups: dict[tuple[int, int], _Group] = {}

    @property
    def is_needed(self) -> bool:
        """Whether the config has rewards that see groups."""
        return bool(self._by)

    def begin(self, fragment: Fragment, device: str, samples: PrefectFuture[Any]) -> None:
        """Note that a fragment is being decoded and scored, perhaps anew, on a device."""
        group = self._groups.setdefault((fragment.iteration, fragment.group), _Group())
        group.parts[fragment] = _Decoded(device, samples)

    def add(
        self, it: OpenIteration, fragment: Fragment, receipt: Receipt[Scored], prompt: Prompt
    ) -> None:
        """Note what the rewards that see samples said of a fragment; score the last one's group."""
        group = self._groups[fragment.iteration, fragment.group]
        group.parts[fragment] = replace(group.parts[fragment], receipt=receipt)
        there = [part for part, own in group.parts.items() if own.receipt is not None]
        size = self._run.workers.workload.size_of(fragment.group)
        if sum(part.num_samples for part in there) < size:
            return
        group.asked += 1
        group.columns.clear()
        for place in range(len(self._by)):
            self._submit(it, group, place, prompt, group.parts[fragment].device)

    def forget(self, devices: Collection[str]) -> None:
        """Drop the fragments that lost devices held; they come again."""
        for group in self._groups.values():
            for fragment, own in list(group.parts.items()):
                if own.device in devices:
                    del group.parts[fragment]

    def _submit(
        self, it: OpenIteration, group: _Group, place: int, prompt: Prompt, device: str
    ) -> None:
        parts, pool = sorted(group.parts), self._by[place]
        size = sum(part.num_samples for part in parts)
        # Numbered after its fragments: what each keeps of a failure has a name of its own.
        whole = replace(parts[0], index=len(parts) + place, first_sample=0, num_samples=size)
        asked, name = group.asked, None if pool is None else pool.name
        seeing = that_see(self._run.config.rewards_of(name), "groups")

        def event_of(receipt: Receipt[Scored]) -> Sequence[FragmentScored]:
            return self._events_of(it, group, receipt) if asked == group.asked else []

        work = Work(
            body=score_group,
            label=f"score g{whole.group:02d}" + ("" if name is None else f" {name}"),
            device=device,
            kind="score",
            about={"group": whole.group, "num_items": 0},  # no cost of a fragment is learnt of it
            parameters={
                "pool": pool,
                "samples": [group.parts[part].samples for part in parts],
                "size": self._run.config.size_of(whole.iteration, whole.group),
                "prompts": [prompt] * size,
                "at": (whole, self._run.shared_dir),
            },
            event_of=event_of,
            priority=URGENT if pool is None else it.round.priority_of(whole.group),
            resource=name,
            takes_from=frozenset(own.device for own in group.parts.values()),
            lasts=asks_server(seeing),
        )
        self._submitter.submit(it, work)

    def _events_of(
        self, it: OpenIteration, group: _Group, receipt: Receipt[Scored]
    ) -> list[FragmentScored]:
        notify_of_failures(self._run, it, receipt)
        own = receipt.facts.rewards
        group.columns.append({name: values for name, values in own.items() if name != "reward"})
        if len(group.columns) < len(self._by):
            return []
        parts = sorted(group.parts)
        for fragment in parts:
            first = group.parts[fragment].receipt
            assert first is not None, "a group is scored when its fragments are"
            more = {
                name: values[fragment.first_sample : fragment.first_sample + fragment.num_samples]
                for columns in group.columns
                for name, values in columns.items()
            }
            facts = replace(first.facts, rewards={**first.facts.rewards, **more})
            it.recorder.add_rewards(fragment, replace(first, facts=facts))
        del self._groups[parts[0].iteration, parts[0].group]
        return [FragmentScored(fragment) for fragment in parts]


def asks_server(rewards: Mapping[str, RewardConfig]) -> bool:
    """Say whether one of some rewards is asked of a server, which may take as long as it likes."""
    return any(isinstance(reward, ServerReward) for reward in rewards.values())


def notify_of_failures(run: RunContext, it: OpenIteration, receipt: Receipt[Scored]) -> None:
    """Say, once an iteration, what reward failed."""
    for note in receipt.facts.notes[: 0 if it.notified else 1]:
        it.notified = True
        notify(
            run,
            "reward-failed",
            f"iteration {it.index + 1}: {note} (on {receipt.ran.device}; said once an "
            "iteration). Where a score is missing, on_failure says what follows; the worker's "
            "log has more",
        )
