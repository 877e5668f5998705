"""The rows of a batch: which sample of which group each of them is, and whose noise it has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from digen_core.models.policy import Condition
from digen_core.seeding import NOISE, noise_of
from digen_core.transport.origin import Origin


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Consecutive rows that are samples of one group."""

    group: tuple[int, int]  # (iteration, index)
    samples: range  # indices in the group
    origin: Origin  # whose noise they have

    @classmethod
    def of(cls, group: tuple[int, int], samples: range, origin: Origin | None = None) -> Self:
        """Return samples of a group; with the noise of an origin, or their own."""
        return cls(group, samples, origin or Origin(group, samples))

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples of one group after the other."""

    parts: tuple[GroupRows, ...]

    @classmethod
    def of(cls, group: tuple[int, int], samples: range, origin: Origin | None = None) -> Self:
        """Return samples of one group; with the noise of an origin, or their own."""
        return cls((GroupRows.of(group, samples, origin),))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the group and the sample of each."""
        return ((part.group, sample) for part in self.parts for sample in part.samples)

    def part(self, rows: slice) -> Self:
        """Return some consecutive ones."""
        found, first = [], 0
        for part in self.parts:
            start, stop = (min(max(at - first, 0), len(part)) for at in (rows.start, rows.stop))
            if start < stop:
                own = slice(start, stop)
                found.append(GroupRows(part.group, part.samples[own], part.origin.part(own)))
            first += len(part)
        return type(self)(tuple(found))

    def noise(
        self, shape: Sequence[int], *, seed: int, purpose: int, step: int, shared: bool = False
    ) -> Tensor:
        """Draw the noise of all, float32 [n, *shape]: of denoising their origins', else their own.

        The arguments are those of `noise_of`; ``shared`` is said of each group.
        """
        drawn = [
            noise_of(
                shape,
                seed=seed,
                purpose=purpose,
                group=own.group,
                samples=own.samples,
                step=step,
                shared=shared,
            )
            for own in (part.origin if purpose == NOISE else part for part in self.parts)
        ]
        return torch.cat(drawn)

    def conditions(self, of_groups: Mapping[tuple[int, int], Condition]) -> Condition:
        """Return embeddings with a row for each, from those of each group's prompt, one row.

        They are contiguous as in a training pack: on another layout matrix products round
        differently.
        """
        first = of_groups[self.parts[0].group]
        return {
            name: torch.cat(
                [
                    of_groups[part.group][name].expand(len(part), *value.shape[1:])
                    for part in self.parts
                ]
            ).contiguous()
            for name, value in first.items()
        }

    def named(self, found: Mapping[int, str]) -> dict[tuple[int, int], dict[int, str]]:
        """Return what is said of rows by the group and the sample that each is."""
        every, named = list(self), dict[tuple[int, int], dict[int, str]]()
        for row, what in sorted(found.items()):
            group, sample = every[row]
            named.setdefault(group, {})[sample] = what
        return named
