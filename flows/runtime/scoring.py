"""Have fragments scored: where they were generated, and by pools of workers beside it."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from digen_core.config.rewards import that_see
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Event, Fragment, FragmentScored, Score
from digen_core.data.prompts import Prompt
from digen_core.rewards.sums import with_reward
from flows.runtime.context import RunContext
from flows.runtime.generation import about
from flows.runtime.group_scoring import GroupScoring, asks_server, notify_of_failures
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.submission import Submitter, Work
from tasks.decoding import decode_and_score
from tasks.receipts import Receipt, Scored
from tasks.score import Pool, score


class Scoring:
    """The fragments that are scored; one is when the receipts of all who score it are there.

    Where rewards see groups, it is when its whole group is.
    """

    def __init__(self, run: RunContext, submitter: Submitter) -> None:
        self._run = run
        self._submitter = submitter
        self._pools = Pool.that_see("samples", run.config)
        self._of_groups = GroupScoring(run, submitter)
        self._receipts: dict[Fragment, list[Receipt[Scored]]] = {}  # as they arrive

    def begin(self, it: OpenIteration, do: Score) -> None:
        """Have a fragment decoded and scored where it was generated, and scored by the pools."""
        fragment, name = do.fragment, f"g{do.fragment.group:02d} f{do.fragment.index}"
        prompt = self._asked_of(it, fragment.group)
        size = self._run.config.size_of(it.index, fragment.group)
        self._receipts[fragment] = []  # what a device that was lost had of it is not counted

        def event_of(receipt: Receipt[Scored]) -> Event | None:
            return self._event_of(it, fragment, receipt)

        here = Work(
            body=decode_and_score,
            label=f"score {name}",
            device=do.device,
            kind="score",
            about=about(fragment),
            parameters={
                "prompt": prompt,
                "run_dir": self._run.shared_dir,
                "fragment": fragment,
                "segments": it.segments[fragment][-1][1],
            },
            event_of=event_of,
            lasts=asks_server(that_see(self._run.config.rewards_of(None), "samples")),
        )
        samples = self._submitter.submit(it, here)
        if self._of_groups.is_needed:
            self._of_groups.begin(fragment, do.device, samples)
        for pool in self._pools:
            beside = Work(
                body=score,
                label=f"score {name} {pool.name}",
                device=do.device,
                kind="score",
                about=about(fragment),
                parameters={
                    "pool": pool,
                    "samples": samples,
                    "size": size,
                    "prompts": [prompt] * fragment.num_samples,
                    "at": (fragment, self._run.shared_dir),
                },
                event_of=event_of,
                priority=it.round.priority_of(fragment.group, fragment.index),
                resource=pool.name,
                lasts=asks_server(that_see(pool.rewards, "samples")),
            )
            self._submitter.submit(it, beside)

    def forget(self, devices: Collection[str]) -> None:
        """Drop what lost devices had decoded."""
        self._of_groups.forget(devices)

    def _asked_of(self, it: OpenIteration, group: int) -> Prompt:
        """Return a group's prompt, with its images if a reward may look at them."""
        config, prompt = self._run.config, it.round.prompts[group]
        if not any(reward.sees_source for reward in config.rewards.values()):
            return replace(prompt, images=(), samples=())
        return prompt.shown_in(config.size_of(it.index, group))

    def _event_of(
        self, it: OpenIteration, fragment: Fragment, receipt: Receipt[Scored]
    ) -> Event | None:
        notify_of_failures(self._run, it, receipt)
        receipts = self._receipts[fragment]
        receipts.append(receipt)
        if len(receipts) <= len(self._pools):
            return None
        del self._receipts[fragment]
        first = receipts[0]  # the device's: pools score what it decoded
        rewards = merged_rewards(self._run.config, [part.facts for part in receipts])
        scored = replace(first, facts=replace(first.facts, rewards=rewards))
        it.recorder.add_nonfinite(fragment, first.facts.nonfinite)
        if self._of_groups.is_needed:
            self._of_groups.add(it, fragment, scored, self._asked_of(it, fragment.group))
            return None
        it.recorder.add_rewards(fragment, scored)
        return FragmentScored(fragment)


def merged_rewards(config: RunConfig, scored: Sequence[Scored]) -> dict[str, list[float]]:
    """Return the columns of samples that several workers scored, each with rewards of its own.

    The reward is the same number as where a single worker scores with all of them: of rewards that
    see samples.
    """
    parts = [column for part in scored for column in part.rewards.items()]
    if len(scored) == 1:
        return dict(parts)
    columns = {name: np.array(values) for name, values in parts}
    weights = {name: own.weight for name, own in that_see(config.rewards, "samples").items()}
    summed = with_reward(columns, weights, len(columns["reward"]))
    return {name: values.tolist() for name, values in summed.items()}
