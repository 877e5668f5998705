"""Pairs that can be trained, and how many of them make a pack."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from digen_core.control.costs import Linear
from digen_core.control.protocol import Fragment, PairBlock


class PairPool:
    """Pairs whose advantages exist and that no device was told to train."""

    def __init__(self) -> None:
        self._blocks: deque[PairBlock] = deque()
        self.num_pairs = 0  # in the blocks
        self.load = 0.0  # of them

    @property
    def blocks(self) -> tuple[PairBlock, ...]:
        """The pairs that are in, the longest waiting first."""
        return tuple(self._blocks)

    @property
    def first_group(self) -> int:
        """Of the pair that waits the longest."""
        return self._blocks[0].fragment.group

    def add(self, blocks: Iterable[PairBlock]) -> None:
        """Put pairs in, behind those that wait."""
        for block in blocks:
            self._blocks.append(block)
            self._count([block])

    def take(self, num_pairs: int, load: float = inf) -> tuple[PairBlock, ...]:
        """Take out pairs, the longest waiting first.

        Args:
            num_pairs: at most.
            load: at most, but for a first pair that is larger.
        """
        taken: list[PairBlock] = []
        while self._blocks and num_pairs:
            fit = int(min(num_pairs, load / self._blocks[0].fragment.cost)) or int(not taken)
            if not fit:
                break
            block, rest = _cut(self._blocks.popleft(), fit)
            self._blocks.extendleft(rest)
            taken.append(block)
            num_pairs -= block.num_rows
            load = max(0.0, load - block.load)
        self._count(taken, -1)
        return tuple(taken)

    def take_by_step(
        self, num_samples: int, num_steps: int, load: float = inf
    ) -> list[tuple[PairBlock, ...]]:
        """Take out pairs of each step, the longest waiting first.

        Args:
            num_samples: pairs of a step, at most.
            num_steps: that have some.
            load: of a step's pairs at most, but for a first one that is larger.

        Returns:
            For each step the pairs of it.
        """
        taken: dict[int, list[PairBlock]] = {}
        room: dict[int, tuple[int, float]] = {}
        left, skipped = num_samples * num_steps, list[PairBlock]()
        while left and self._blocks:
            block = self._blocks.popleft()
            number, most = room.get(block.step, (num_samples, load))
            fit = int(min(number, most / block.fragment.cost)) or int(block.step not in taken)
            if not fit:
                room[block.step] = 0, 0.0
                skipped.append(block)
                continue
            block, rest = _cut(block, fit)
            skipped += rest
            taken.setdefault(block.step, []).append(block)
            # What waits behind a rest is not trained before it.
            number = 0 if rest else number - block.num_rows
            room[block.step] = number, max(0.0, most - block.load)
            left -= block.num_rows
        self._blocks.extendleft(reversed(skipped))
        packs = [tuple(blocks) for blocks in taken.values()]
        for pack in packs:
            self._count(pack, -1)
        return packs

    def remove(self, is_gone: Callable[[Fragment], bool]) -> list[PairBlock]:
        """Take out the pairs of fragments that are gone."""
        removed = [block for block in self._blocks if is_gone(block.fragment)]
        self._blocks = deque(block for block in self._blocks if not is_gone(block.fragment))
        self._count(removed, -1)
        return removed

    def _count(self, blocks: Iterable[PairBlock], sign: int = 1) -> None:
        for block in blocks:
            self.num_pairs += sign * block.num_rows
            self.load += sign * block.load

    def validate(self) -> None:
        """Raise AssertionError if the pairs are not counted right."""
        assert self.num_pairs == sum(block.num_rows for block in self._blocks)
        assert self.load == sum(block.load for block in self._blocks)


def pairs_by_step(
    fragment: Fragment, samples: Mapping[int, Sequence[int]], update: int = 0
) -> list[PairBlock]:
    """Cut pairs of a fragment into blocks, step after step.

    A pack of them holds many samples of few steps.

    Args:
        fragment: of the pairs.
        samples: of it that train each step, ascending.
        update: that trains them.
    """
    return [
        PairBlock(fragment, step, first, last - first, update)
        for step, own in samples.items()
        for first, last in _runs(_rows(fragment, own))
    ]


def pairs_by_sample(
    fragment: Fragment, samples: Mapping[int, Sequence[int]], num_together: int, update: int = 0
) -> list[PairBlock]:
    """Cut pairs of a fragment into blocks, a few samples after the other.

    ``num_together`` samples at most are in one block, at one step; all their steps follow.
    Arguments as of `pairs_by_step`.
    """
    rows = {step: _rows(fragment, own) for step, own in samples.items()}
    return [
        PairBlock(fragment, step, first, last - first, update)
        for start, end in _runs(sorted(set().union(*rows.values())))
        for chunk in range(start, end, num_together)
        for step, own in rows.items()
        for first, last in _runs(
            [row for row in own if chunk <= row < min(chunk + num_together, end)]
        )
    ]


def by_step(
    samples: Sequence[int], steps: Iterable[int], own_steps: Sequence[Collection[int]] = ()
) -> dict[int, Sequence[int]]:
    """Return which samples train each step, as what cuts them into blocks takes it.

    Args:
        samples: of a group, ascending.
        steps: that are trained.
        own_steps: of all samples of the group those of them that each trains; empty: all.
    """
    if not own_steps:
        return dict.fromkeys(steps, samples)
    return {step: [s for s in samples if step in own_steps[s]] for step in steps}


def _rows(fragment: Fragment, samples: Sequence[int]) -> list[int]:
    return [sample - fragment.first_sample for sample in samples]


def _cut(block: PairBlock, most: int) -> tuple[PairBlock, list[PairBlock]]:
    """Return a block of at most so many pairs, and the rest of them if there is one."""
    if block.num_rows <= most:
        return block, []
    first, left = block.first_row, block.num_rows - most
    rest = replace(block, first_row=first + most, num_rows=left)
    return replace(block, num_rows=most), [rest]


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return consecutive rows as [first, end) runs."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return runs


# How much dearer a pair may be in a pack that does not wait to be filled.
MAX_EXTRA_COST = 0.25


def fewest_worth(operation: Linear, most: int) -> int:
    """Return the fewest items, pairs of a pack or samples of a step, that are worth its fixed cost.

    The n with (a + n c) / n <= (1 + MAX_EXTRA_COST) (a + b c) / b, by hand for a = 0.9, c = 0.75,
    b = 8: 0.9 / n <= 1.25 * 0.8625 - 0.75, so n = 3.
    """
    dearest = (1 + MAX_EXTRA_COST) * operation(most) / most
    for number in range(1, most):
        if operation(number) <= dearest * number:
            return number
    return most
