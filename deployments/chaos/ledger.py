"""The work that a run's controllers asked for, and what of it went with lost devices."""

from collections import defaultdict
from collections.abc import Collection

from pydantic import Field

from digen_core.control import protocol as p
from digen_core.strict import Strict


class Work(Strict):
    """An amount of it."""

    sample_steps: int = 0
    """Denoising steps of a sample."""

    pairs: int = 0
    """Forward and backward passes."""

    def __add__(self, other: "Work") -> "Work":
        return Work(
            sample_steps=self.sample_steps + other.sample_steps, pairs=self.pairs + other.pairs
        )


class Life(Strict):
    """What a run did from its start, or from where it resumed, until it ended or went back."""

    kept: tuple[int, ...] = ()
    """Iterations that were over in each checkpoint on disk, the oldest first."""

    asked: dict[int, Work] = Field(default_factory=dict)
    """Work that was asked for, by iteration."""

    lost: dict[int, Work] = Field(default_factory=dict)
    """Of that, what has to be done again at most, as devices were lost: fragments in full of which
    one had, made or scored a part, and packs that one trained or had in its sum."""


class Ledger:
    """Follows what controllers hear and say, and counts: it decides nothing."""

    def __init__(self) -> None:
        self._before: list[Life] = []
        self._last_offered = -1
        self._begin(())

    def _begin(self, kept: tuple[int, ...]) -> None:
        self.kept = kept
        self._asked: defaultdict[int, Work] = defaultdict(Work)
        self._lost: defaultdict[int, Work] = defaultdict(Work)
        self._ends: dict[p.Fragment, int] = {}  # the step before which its device stops
        self._had_by: defaultdict[p.Fragment, set[str]] = defaultdict(set)
        self._trained_by: dict[p.Pack, str] = {}

    @property
    def lives(self) -> list[Life]:
        """All of this process, the one that goes on included."""
        return [*self._before, Life(kept=self.kept, asked=self._asked, lost=self._lost)]

    def add(self, what: p.Event | p.Instruction) -> None:  # noqa: C901 - a table
        """Count what is asked for, less what was cut short, and what was lost."""
        match what:
            case p.IterationOffered(iteration):
                if iteration <= self._last_offered:  # the run went back to a checkpoint
                    self._before = self.lives
                    self._begin(tuple(number for number in self.kept if number <= iteration))
                self._last_offered = iteration
            case p.Generate(batch, first, end, _, device):
                self._ask(batch.iteration, steps=batch.num_samples * (end - first))
                for fragment in batch.fragments:
                    self._ends[fragment] = end
                    self._had_by[fragment].add(device)
            case p.BatchPaused(batch, next_step):
                undone = self._ends[batch.fragments[0]] - next_step
                self._ask(batch.iteration, steps=-batch.num_samples * undone)
            case p.Score(fragment, device):
                self._had_by[fragment].add(device)
            case p.Train(pack, _, device):
                self._ask(pack.iteration, pairs=pack.num_pairs)
                self._trained_by[pack] = device
            case p.PackTooLarge(pack):
                self._ask(pack.iteration, pairs=-pack.num_pairs)
                del self._trained_by[pack]
            case p.DevicesLost(devices):
                self._lose(devices)
            case p.FinishIteration(iteration):
                self._finish(iteration)

    def _ask(self, iteration: int, *, steps: int = 0, pairs: int = 0) -> None:
        self._asked[iteration] += Work(sample_steps=steps, pairs=pairs)

    def _lose(self, devices: Collection[str]) -> None:
        for fragment, having in self._had_by.items():
            if not having.isdisjoint(devices):
                having.difference_update(devices)
                steps = fragment.num_samples * self._ends[fragment]
                self._lost[fragment.iteration] += Work(sample_steps=steps)
        for pack in [pack for pack, device in self._trained_by.items() if device in devices]:
            del self._trained_by[pack]
            self._lost[pack.iteration] += Work(pairs=pack.num_pairs)

    def _finish(self, iteration: int) -> None:
        """Forget what nobody needs any more: what is lost of it is not made again."""
        for fragment in [own for own in self._had_by if own.iteration == iteration]:
            del self._had_by[fragment], self._ends[fragment]
        for pack in [own for own in self._trained_by if own.iteration == iteration]:
            del self._trained_by[pack]
