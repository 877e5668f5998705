"""The search for the split and the mechanisms that make a layout the fastest for a problem.

Closed forms rank the splits. The simulator judges the best of them, and those at which a wave of
fragments less is needed, without jitter; then the finalists' neighbours, and the finalists with
jitter and several seeds. Every mechanism is also tried switched off, and stays off unless it pays.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import ceil
from operator import attrgetter
from statistics import mean

from digen_core.control.layout import LAYOUTS, Layout, LayoutName
from digen_core.control.schedule import (
    QUEUE_DEPTH,
    UNMIXED,
    Mixing,
    Schedule,
    mixings,
)
from digen_core.sim.closed_forms import FORMULAS, Terms
from digen_core.sim.problem import Problem
from digen_core.sim.report import SimulationReport
from digen_core.sim.simulator import simulate

Value = Callable[[SimulationReport], float]
"""What is to be the least, such as the seconds."""

STALE_SHARE = 0.5
MIN_GAIN = 0.005  # of a mechanism, else it stays off
NUM_SPLITS = 3  # by formula, and as many by waves, for each set of mechanisms
NEAR = 1.15  # of the fastest, to look for better ones next to it
CLOSE = 1.02  # to the fastest, so that jitter may turn the order
MAX_CLIMBS = 3  # from a leader to a better neighbour
NUM_FINALISTS = 4
NUM_SEEDS = 3
STALE_HELP = 4  # with stale groups the search begins with a quarter of the devices helping
STALE_ITERATIONS = 12  # at least, with groups that are a version behind


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout with all its quantities."""

    layout: LayoutName
    num_rollout: int | None  # None: every device does both
    helpers: int = 0
    assistants: int = 0
    stale_share: float = 0.0
    max_staleness: int = 1  # versions that stale groups may be behind
    mixing: Mixing = UNMIXED

    @property
    def num_mechanisms(self) -> int:
        """How many of its mechanisms are on; each version more than one is one."""
        mechanisms = (self.helpers, self.assistants, self.stale_share)
        return sum(map(bool, mechanisms)) + self.max_staleness - 1

    @property
    def has_help(self) -> bool:
        """Whether any device may do the other role's work."""
        return bool(self.helpers or self.assistants)

    @property
    def schedule(self) -> Schedule:
        """What the controller is told."""
        return Schedule(
            LAYOUTS[self.layout],
            max_stale_share=self.stale_share,
            max_staleness=self.max_staleness,
            helpers=self.helpers,
            assistants=self.assistants,
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """Quantities that are not searched for; None: they are."""

    num_rollout: int | None = None
    helpers: int | None = None
    assistants: int | None = None
    stale_share: float | None = None
    most_staleness: int = 1
    """Versions that stale groups may be behind at most; the least that pays is searched for."""

    def __str__(self) -> str:
        """Name what is fixed."""
        values = asdict(self)
        del values["most_staleness"]
        return ", ".join(f"{name}={own:g}" for name, own in values.items() if own is not None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The best choice that was found."""

    choice: Choice
    seconds: float  # per iteration, mean over the seeds
    report: SimulationReport  # of the first seed


def search(
    problem: Problem,
    layout: LayoutName,
    fixed: Fixed | None = None,
    *,
    num_iterations: int = 4,
    seed: int = 0,
    value: Value = attrgetter("seconds"),
    simulated: Plan | None = None,
) -> Plan:
    """Find the split and mechanisms of a layout that are the fastest, or the best otherwise.

    Args:
        problem: the recipe, the cluster and what things cost.
        layout: whose switches say which mechanisms there are.
        fixed: quantities to keep.
        num_iterations: of the last simulations; at least 12 with stale groups.
        seed: the first of their seeds.
        value: of an iteration, that is to be the least.
        simulated: a choice that was simulated before, without jitter.

    Raises:
        ValueError: no split has so many helpers and assistants as are fixed.
    """
    space = _Space(problem, layout, fixed or Fixed())
    judged: dict[Choice, float] = {}

    def judge(choices: Iterable[Choice]) -> None:
        for choice in choices:
            if choice not in judged:
                # Without jitter one iteration on-policy is much like the other.
                iterations = stale_iterations(choice.max_staleness) - 4 if choice.stale_share else 2
                report = _known(simulated, choice, iterations) or simulate_choice(
                    problem, choice, num_iterations=iterations
                )
                judged[choice] = _worth(choice, value(report))

    judge(space.ranked())
    if not judged:
        raise ValueError(f"no split of {problem.devices} devices has {fixed} in layout {layout}")
    for choice in _leaders(judged):
        for _ in range(MAX_CLIMBS):
            around = list(space.neighbours(choice))
            judge(around)
            better = min(around, key=judged.__getitem__, default=choice)
            if judged[better] >= judged[choice]:
                break
            choice = better
    best = min(judged.values())
    ranking = sorted(judged, key=judged.__getitem__)
    finalists = [choice for choice in ranking if judged[choice] <= CLOSE * best][:NUM_FINALISTS]
    runs = {choice: _run(problem, choice, num_iterations, seed) for choice in finalists}
    chosen = min(runs, key=lambda choice: _worth(choice, mean(map(value, runs[choice]))))
    return Plan(chosen, mean(report.seconds for report in runs[chosen]), runs[chosen][0])


def _known(simulated: Plan | None, choice: Choice, num_iterations: int) -> SimulationReport | None:
    """Return the report of a plan if it is that of a choice in so many iterations."""
    if simulated is None or simulated.choice != choice:
        return None
    report = simulated.report
    return report if len(report.iteration_ends) == num_iterations else None


def stale_iterations(max_staleness: int) -> int:
    """Return how many iterations show what stale groups bring: those ahead are used up before."""
    return STALE_ITERATIONS + 2 * (max_staleness - 1)


def simulate_choice(
    problem: Problem, choice: Choice, *, num_iterations: int, seed: int = 0, jitter: float = 0.0
) -> SimulationReport:
    """Simulate a problem as one choice says."""
    costs = problem.costs(choice.num_rollout)
    queue_depth = QUEUE_DEPTH if costs.links else 1  # else nothing is gained by it
    return simulate(
        problem.cluster(choice.num_rollout),
        problem.workload,
        replace(choice.schedule, pulls_at_once=problem.pulls_at_once, queue_depth=queue_depth),
        costs,
        trained_steps=range(problem.trained_steps),
        num_iterations=num_iterations,
        seed=seed,
        jitter=jitter,
        mixing=choice.mixing,
        unforeseen=problem.unforeseen,
    )


def _run(
    problem: Problem, choice: Choice, num_iterations: int, seed: int
) -> list[SimulationReport]:
    """Simulate a choice with jitter, once for each seed."""
    if choice.stale_share:
        num_iterations = max(num_iterations, stale_iterations(choice.max_staleness))
    return [
        simulate_choice(
            problem, choice, num_iterations=num_iterations, seed=number, jitter=problem.jitter
        )
        for number in range(seed, seed + (NUM_SEEDS if problem.jitter else 1))
    ]


def _leaders(judged: dict[Choice, float]) -> list[Choice]:
    """Return the best choice with and without help, stale and on-policy, if it is near the best."""
    leaders: dict[tuple[bool, bool], Choice] = {}
    for choice in sorted(judged, key=judged.__getitem__):
        leaders.setdefault((choice.has_help, choice.stale_share > 0), choice)
    limit = NEAR * min(judged.values())
    return [choice for choice in leaders.values() if judged[choice] <= limit]


def _worth(choice: Choice, value: float) -> float:
    """Return a value, made larger by what each mechanism has to gain."""
    return value * (1 + MIN_GAIN * choice.num_mechanisms)


def _near(number: int, most: int) -> set[int]:
    """Return numbers of devices to try beside one."""
    return {0, number // 2, number - 1, number + 1, number + 2} & set(range(most + 1)) - {number}


@dataclass(frozen=True, slots=True)
class _Space:
    """The choices that a layout has."""

    problem: Problem
    layout: LayoutName
    fixed: Fixed

    def ranked(self) -> Iterator[Choice]:
        """Yield the most promising splits, with all help and without, stale and on-policy."""
        if self.switches.colocated:
            yield Choice(self.layout, None, mixing=mixings(self.problem.workload)[-1])
            return
        for helping, share in product((False, True), self._shares()):
            for split in self._promising(helping, share):
                yield self._choice(split, helping, share)

    def neighbours(self, choice: Choice) -> Iterator[Choice]:
        """Yield choices that differ a little: the next splits, more or less of a mechanism."""
        yield from self._mixed(choice)
        split = choice.num_rollout
        if split is None:
            return
        beside = set(self._splits()) & {split - 1, split + 1}
        yield from (self._like(choice, near) for near in sorted(beside))
        if self.fixed.helpers is None and self.switches.trainers_help:
            for number in _near(choice.helpers, self._trainers(split)):
                yield replace(choice, helpers=number)
        if self.fixed.assistants is None and self.switches.rollouts_train:
            for number in _near(choice.assistants, split):
                yield replace(choice, assistants=number)
        if choice.stale_share:
            yield from self._staler(choice)

    def _mixed(self, choice: Choice) -> Iterator[Choice]:
        """Yield choices with the other ways to generate groups that cost differently."""
        for mixing in mixings(self.problem.workload):
            if mixing != choice.mixing:
                yield replace(choice, mixing=mixing)

    def _staler(self, choice: Choice) -> Iterator[Choice]:
        """Yield choices with half the stale groups, and with groups of older and newer versions."""
        if self.fixed.stale_share is None:
            yield replace(choice, stale_share=choice.stale_share / 2)
        near = {choice.max_staleness - 1, choice.max_staleness + 1, 2 * choice.max_staleness}
        for versions in sorted(near & set(range(1, self.fixed.most_staleness + 1))):
            yield replace(choice, max_staleness=versions)

    def _like(self, choice: Choice, split: int) -> Choice:
        """Return a choice with another split, and about as much help."""
        everyone = choice.helpers == self._trainers(choice.num_rollout or 0)
        helpers = self._trainers(split) if everyone else choice.helpers
        everyone = choice.assistants == choice.num_rollout
        assistants = split if everyone else choice.assistants
        return replace(
            choice,
            num_rollout=split,
            helpers=min(helpers, self._trainers(split)),
            assistants=min(assistants, split),
        )

    @property
    def switches(self) -> Layout:
        """What the layout does."""
        return LAYOUTS[self.layout]

    def _shares(self) -> tuple[float, ...]:
        if self.fixed.stale_share is not None and (
            self.switches.stale or self.switches.rollouts_train
        ):
            return (self.fixed.stale_share,)
        return (0.0, STALE_SHARE) if self.switches.stale else (0.0,)

    def _choice(self, split: int, helping: bool, share: float) -> Choice:
        """Return a choice with much help, or none, or as much as is fixed.

        On-policy all devices may help. With stale groups most have enough to do as it is.
        """
        helpers = assistants = 0
        if self.switches.trainers_help:
            some = self._trainers(split) // (STALE_HELP if share else 1)
            helpers = some if helping else 0
            helpers = helpers if self.fixed.helpers is None else self.fixed.helpers
        if self.switches.rollouts_train:
            some = split // (STALE_HELP if share else 1)
            assistants = some if helping else 0
            assistants = assistants if self.fixed.assistants is None else self.fixed.assistants
        versions = self._staleness(split, share) if share else 1
        mixing = mixings(self.problem.workload)[-1]
        return Choice(self.layout, split, helpers, assistants, share, versions, mixing)

    def _staleness(self, split: int, share: float) -> int:
        """Return the versions that hide a push that takes longer than an iteration, else one."""
        found = Terms.of(self.problem, split, share).staleness(self.fixed.most_staleness)
        return max(1, found - 1)

    def _promising(self, helping: bool, share: float) -> list[int]:
        """Return splits, best by formula first, then those with a wave of fragments less."""
        formula = FORMULAS[self._effective(helping, share)]
        splits = self._splits()
        best = sorted(splits, key=lambda split: formula(Terms.of(self.problem, split, share)))
        waves, fragments = {}, self.problem.workload.num_fragments
        for split in reversed(splits):
            waves[ceil(fragments / split)] = split  # the fewest devices with so many
        steps = sorted(waves.values())
        spread = steps[:: max(1, ceil(len(steps) / NUM_SPLITS))]
        return list(dict.fromkeys(best[:NUM_SPLITS] + spread))

    def _effective(self, helping: bool, share: float) -> LayoutName:
        """Return the layout that is left when mechanisms are off."""
        if not self.switches.trainers_help:
            return self.layout
        if share:
            return "tcss"
        if not helping:
            return "tsp"
        return "elastic" if self.switches.rollouts_train else "tag"

    def _splits(self) -> range:
        """Return the splits that have as many helpers and assistants as are fixed."""
        fixed, switches = self.fixed, self.switches
        if fixed.num_rollout is None:
            first, last = self.problem.splits[0], self.problem.splits[-1]
        else:
            first = last = fixed.num_rollout
        if switches.rollouts_train:
            first = max(first, fixed.assistants or 0)
        if switches.trainers_help:
            last = min(last, self._trainers(fixed.helpers or 0))
        return range(first, last + 1)

    def _trainers(self, num_rollout: int) -> int:
        return self.problem.devices - num_rollout
