"""Choose which candidates of a prompt are generated again, as the samples of its group."""

from digen_core.control.protocol import AdvantagesComputed, Event, GroupsReplaced
from flows.runtime.context import RunContext
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.notify import notify_of_dropped_group


def screen(run: RunContext, it: OpenIteration, group: int) -> Event:
    """Have a group of samples generated in the place of its candidates, whose rewards are there.

    If too few of them are numbers, the group is dropped: another prompt's candidates take its
    place, if there are some left.
    """
    nonfinite = it.recorder.nonfinite_in(group)
    chosen = run.workers.candidates(it.recorder.rewards_of(group), nonfinite)
    samples = it.round.samples_of(group)
    it.forget_segments(group)  # nothing is trained on candidates
    if chosen is not None:
        it.recorder.add_screened(group, samples, chosen)
        it.chosen[samples] = chosen
        return GroupsReplaced(it.index, ((group, samples),))
    it.recorder.add_unscreened(group)
    notify_of_dropped_group(run, it.index, group, nonfinite)
    another = it.round.successor_of(samples)
    if another is None:
        return AdvantagesComputed(it.index, (group,), (group,))
    it.recorder.add_replaced([group])
    return GroupsReplaced(it.index, ((group, another),))
