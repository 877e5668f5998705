"""Recompute what lost devices held, by the same instructions and so with the same values.

A trajectory needs all its steps, so a fragment of which a stretch is gone is generated anew from
its first step, with the version of its group. Pairs that are in a lost gradient sum, or whose
transitions are gone, are trained again when they exist again; no other pair is.
"""

from collections.abc import Iterable

from digen_core.control.iteration import Iteration
from digen_core.control.protocol import Fragment, Pack, PairBlock
from digen_core.control.schedule import Workload


def lose_devices(
    iteration: Iteration, names: frozenset[str], returned: list[Pack], workload: Workload
) -> None:
    """Put everything that an iteration had on some devices back among what is to be done.

    Args:
        iteration: that is open.
        names: of the devices that were lost together.
        returned: packs of the iteration that no device was told to train yet.
        workload: of the iteration.
    """
    untrained = _lose_packs(iteration, names, returned)
    lost = {fragment for fragment, held in iteration.held_on.items() if held & names}
    lost |= {fragment for fragment, on in iteration.generating.items() if on in names}
    for fragment in _lose_scores(iteration, names):
        if fragment not in iteration.generating and fragment not in iteration.queue:
            lost.add(fragment)
    for fragment in lost:
        iteration.held_on.pop(fragment, None)
    for fragment in lost | _put(iteration, untrained):
        _generate_again(iteration, fragment, names, workload)
    iteration.to_score = [do for do in iteration.to_score if do.fragment not in lost]
    if untrained and not iteration.stepping:
        iteration.reducing = False


def put_back(iteration: Iteration, pack: Pack, workload: Workload) -> None:
    """Put the pairs of a pack that was not trained back among what is to be done."""
    for fragment in _put(iteration, pack.blocks):
        _generate_again(iteration, fragment, frozenset(), workload)


def lose_holder(iteration: Iteration) -> None:
    """Undo how far the update of an iteration is: the sums of other devices are still there."""
    iteration.reducing = iteration.stepping = False


def _lose_scores(iteration: Iteration, names: frozenset[str]) -> list[Fragment]:
    """Return fragments that lost devices were to score, whoever holds their trajectories now.

    Those that are generated again for their trajectories alone are scored, too.
    """
    told = [fragment for fragment, on in iteration.scored_on.items() if on in names]
    waiting = [f for f in told if f in iteration.unscored.get(f.group, ())]
    for fragment in waiting:
        del iteration.scored_on[fragment]
        iteration.regenerating.discard(fragment)
    return waiting


def _lose_packs(
    iteration: Iteration, names: frozenset[str], returned: list[Pack]
) -> list[PairBlock]:
    """Take back the packs that devices trained or were told to train, and the returned ones."""
    packs = iteration.in_gradient
    for name in sorted(names & iteration.trained.keys()):
        packs += iteration.trained.pop(name)
    iteration.in_gradient, packs = (packs, []) if iteration.stepping else ([], packs)
    told = [pack for pack, device in iteration.training.values() if device in names]
    for pack in {pack.index: pack for pack in [*told, *returned]}.values():
        packs.append(pack)
        del iteration.training[pack.index]
    return [block for pack in packs for block in pack.blocks]


def _put(iteration: Iteration, untrained: Iterable[PairBlock]) -> set[Fragment]:
    """Let pairs wait for a device, or for their transitions where these are gone.

    Returns:
        Fragments whose transitions are gone and that nobody generates again yet.
    """

    def is_gone(fragment: Fragment) -> bool:
        return fragment in iteration.regenerating or fragment not in iteration.held_on

    iteration.put(untrained)
    gone = iteration.remove(is_gone)
    for block in gone:
        iteration.parked.setdefault(block.fragment, []).append(block)
    return {block.fragment for block in gone} - iteration.regenerating


def _generate_again(
    iteration: Iteration, fragment: Fragment, names: frozenset[str], workload: Workload
) -> None:
    """Queue a fragment of which a stretch is gone, unless nobody needs it any more.

    Of candidates nobody needs more than their rewards.
    """
    on = iteration.generating.get(fragment)
    if on is not None and on not in names:
        iteration.to_restart.add(fragment)  # when the device that goes on with it stops
    elif on is not None:
        del iteration.generating[fragment]
        iteration.to_restart.discard(fragment)
        iteration.queue.add(fragment)
    elif fragment in iteration.queue:
        iteration.queue.restart(fragment)
    elif _needs_rewards(iteration, fragment):
        _queue(iteration, fragment)
    elif workload.screens(fragment.group):
        return
    elif fragment.group in iteration.without_advantages or fragment in iteration.parked:
        iteration.regenerating.add(fragment)
        _queue(iteration, fragment)


def _needs_rewards(iteration: Iteration, fragment: Fragment) -> bool:
    """Say whether nobody scores it; rewards that came are safe in the receipt."""
    waiting = fragment in iteration.unscored.get(fragment.group, ())  # no group: it was replaced
    return waiting and fragment not in iteration.scored_on


def _queue(iteration: Iteration, fragment: Fragment) -> None:
    iteration.queue.add(fragment)
    iteration.num_to_generate += 1
