"""Whether an image shows what is wanted, given the objects that are in it.

Two ways to judge, both of published code. GenEval's: at least as many objects as wanted, the surest
of which have the colour and the place, and not as many as are excluded. FlowGRPO's, for training:
exactly as many, and a score for what is nearly right.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from digen_core.rewards.geneval.boxes import Found, relations
from digen_core.rewards.geneval.wanted import Clause, Wanted

Objects = Mapping[str, Sequence[Found]]
"""Of each class those that count, the surest first."""
ColoursOf = Callable[[str, Sequence[Found]], Sequence[str]]
"""Returns the colours of objects of a class."""
_Groups = list[Sequence[Found] | None]  # of each clause so far, what meets it; None: it is not met


class Verdict(NamedTuple):
    """What is thought of an image."""

    correct: bool
    """All is there that is wanted, and not more than may be."""

    strict: bool
    """There are exactly as many as wanted of each class; what is excluded is not asked."""

    partial: float
    """How much of that is right; 1 if all is. It may be below 0, if there are many too many."""


def judged(wanted: Wanted, objects: Objects, colours_of: ColoursOf, slack: float) -> Verdict:
    """Return what is thought of an image.

    Args:
        wanted: what its prompt asks for.
        objects: that were found in it.
        colours_of: tells their colours, where some are wanted.
        slack: of positions, see ``relations``.
    """
    strict, partial = _strictly(wanted, objects, colours_of, slack)
    return Verdict(_is_correct(wanted, objects, colours_of, slack), strict, partial)


def _is_correct(wanted: Wanted, objects: Objects, colours_of: ColoursOf, slack: float) -> bool:
    groups: _Groups = []
    for clause in wanted.include:
        found = objects.get(clause.name, ())[: clause.count]
        is_met = (
            len(found) == clause.count
            and _of_colour(clause, found, colours_of) == clause.count
            and _is_placed(clause, found, groups, slack)
        )
        groups.append(found if is_met else None)
    too_many = any(len(objects.get(c.name, ())) >= c.count for c in wanted.exclude)
    return None not in groups and not too_many


def _strictly(
    wanted: Wanted, objects: Objects, colours_of: ColoursOf, slack: float
) -> tuple[bool, float]:
    groups: _Groups = []
    scores: list[float] = []
    for clause in wanted.include:
        found = objects.get(clause.name, ())
        own, is_met = _scores(clause, found, groups, colours_of, slack)
        scores.extend(own)
        groups.append(found if is_met else None)
    return None not in groups, sum(scores) / len(scores)


def _scores(
    clause: Clause, found: Sequence[Found], groups: _Groups, colours_of: ColoursOf, slack: float
) -> tuple[list[float], bool]:
    """Return the scores for number, colour and position, and whether a clause is met exactly."""
    scores = [_nearness(len(found), clause.count)]
    if len(found) != clause.count:
        return [*scores, *([0.0] if clause.colour or clause.position else [])], False
    if clause.colour:
        number = _of_colour(clause, found, colours_of)
        scores.append(_nearness(number, clause.count))
        if number != clause.count:
            return scores, False
    if clause.position is None:
        return scores, True
    if groups[clause.position[1]] is None:
        return [*scores, 0.0], False
    is_placed = _is_placed(clause, found, groups, slack)
    # FlowGRPO's server adds the 1 also to what is misplaced, so a wrong place counts half.
    return [*scores, *([] if is_placed else [0.0]), 1.0], is_placed


def _nearness(number: int, wanted: int) -> float:
    return 1 - abs(wanted - number) / wanted


def _of_colour(clause: Clause, found: Sequence[Found], colours_of: ColoursOf) -> int:
    """Return how many have the wanted colour: all, if none is wanted."""
    if clause.colour is None:
        return len(found)
    return list(colours_of(clause.name, found)).count(clause.colour)


def _is_placed(clause: Clause, found: Sequence[Found], groups: _Groups, slack: float) -> bool:
    """Say whether all objects lie as wanted to all of another clause's."""
    if clause.position is None:
        return True
    relation, target = clause.position
    others = groups[target]
    return others is not None and all(
        relation in relations(one.box, other.box, slack) for one in found for other in others
    )
