"""Beds: made-up clusters like those that FusionLLM was published with, on which plans are compared.

Devices of three speeds are at sites that are near to each other or far (arXiv:2410.12707 has 24 and
48 GPUs with 8 Mb/s to 10 Gb/s). The model is FLUX.1 with adapters, as its recipe counts it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import fmean
from typing import Final

import numpy as np

from digen_core.planning.stages.alternatives import Case, Row, alternatives, pipeline_row
from digen_core.planning.stages.chain import Block, Chain, Numbers
from digen_core.planning.stages.fences import fences_of
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.placement import Stage, held_bytes
from digen_core.planning.stages.plans import Work, plan_of

_MBIT: Final = 1e6 / 8  # bytes/s of a Mb/s
_RATES: Final = (25e12, 40e12, 70e12)  # FLOP/s that devices reach
_NEAR, _FAR = 0.0002, 0.02  # seconds of latency
_SPREAD: Final = 0.3  # sigma of the logarithm of a link's bandwidth about that of its sites


@dataclass(frozen=True, slots=True)
class Bed:
    """Devices at sites."""

    title: str
    sites: tuple[int, ...]  # devices of each
    inside: tuple[float, float]  # Mb/s between two devices of a site: from, to
    between: tuple[float, float]  # Mb/s between two sites
    memory: float  # bytes of a device that are free for a stage


BEDS: Final = (
    Bed("24 devices at 3 sites", (8,) * 3, (1e3, 1e4), (100, 1e3), 22e9),
    Bed("48 devices at 6 sites", (8,) * 6, (1e3, 1e4), (8, 100), 22e9),
    Bed("24 small devices in 12 pairs", (2,) * 12, (1e3, 1e3), (50, 300), 6.5e9),
)

DRAWS: Final = 4
"""Of the links and speeds of each bed: what is shown is their mean."""

WORK: Final = Work(num_samples=96, num_steps=6, pairs_per_sample=3, batch=96)
"""Of an iteration: a twelfth of the recipe's samples."""

TRAJECTORY_BYTES: Final = 1_835_020.0

_CUT: Final = 7_077_888.0  # bytes


def _two(number: int, backward: float = 595_448_561_664.0) -> Block:
    name = f"transformer_blocks.{number}"
    trained = 14_155_776.0
    return Block(name, 285_606_936_576.0, backward, 679_662_592.0, trained, _CUT, _CUT, 2 * trained)


def _one(number: int) -> Block:
    name, weights, trained = f"single_transformer_blocks.{number}", 283_183_616.0, 2_359_296.0
    return Block(
        name, 280_001_249_280.0, 578_971_238_400.0, weights, trained, _CUT, _CUT, 2 * trained
    )


FLUX: Final = Chain(
    before=Block("before the blocks", 3_688_366_080.0, 0.0, 90_095_616.0, 0.0, 9_745_420.0),
    blocks=(
        _two(0, backward=528_859_791_360.0),
        *(_two(number) for number in range(1, 19)),
        *(_one(number) for number in range(38)),
    ),
    after=Block("after the blocks", 440_401_920.0, 402_653_184.0, 38_154_368.0, 0.0),
    velocity_bytes=262_144.0,
)
"""What ``digen size flow_grpo_flux_fast --blocks --train.gradient_checkpointing true`` counts: that
takes torch and some seconds."""


def rows_of(bed: Bed, seed: int = 0, draws: int = DRAWS) -> list[Row]:
    """Compare what can be done on a bed: equal stages first, the usual; then with planning.

    Args:
        bed: of devices.
        seed: of their links and speeds.
        draws: of these; numbers are means, and what is possible in all of them is shown.
    """
    found = defaultdict[str, list[Row]](list)
    for draw in range(draws):
        case = case_of(bed, seed + draw)
        for row in (*_unplanned(case), *alternatives(case)):
            found[row.name].append(row)
    return [_mean(rows) for rows in found.values() if len(rows) == draws]


def _mean(rows: Sequence[Row]) -> Row:
    what = dict.fromkeys(row.crossing for row in rows if row.crossing_bytes)
    return replace(
        rows[0],
        crossing=", ".join(what) or "nothing",
        seconds=fmean(row.seconds for row in rows),
        num_devices=fmean(row.num_devices for row in rows),
        crossing_bytes=fmean(row.crossing_bytes for row in rows),
    )


def case_of(bed: Bed, seed: int = 0) -> Case:
    """Return FLUX.1 on a bed whose devices are numbered in no order."""
    return Case(FLUX, network_of(bed, np.random.default_rng(seed)), WORK, TRAJECTORY_BYTES, seed)


def network_of(bed: Bed, random: np.random.Generator) -> Network:
    """Draw the speeds and links of a bed, uniformly by their logarithm."""
    num = sum(bed.sites)
    site = random.permutation(np.repeat(range(len(bed.sites)), bed.sites))
    near = site[:, None] == site[None, :]
    speeds = _between(random, bed.between, len(bed.sites))
    np.fill_diagonal(speeds, np.diag(_between(random, bed.inside, len(bed.sites))))
    noise = random.normal(0, _SPREAD, (num, num))
    bandwidth = _MBIT * speeds[np.ix_(site, site)] * np.exp((noise + noise.T) / 2)
    rates = random.choice(_RATES, num)
    return Network(rates, np.full(num, bed.memory), bandwidth, np.where(near, _NEAR, _FAR))


def _between(random: np.random.Generator, limits: tuple[float, float], num: int) -> Numbers:
    """Draw a symmetric matrix [num, num]."""
    drawn: Numbers = np.exp(random.uniform(log(limits[0]), log(limits[1]), (num, num)))
    return np.tril(drawn) + np.tril(drawn, -1).T


def _unplanned(case: Case) -> Iterator[Row]:
    """Yield all devices in the order in which they are listed, where their memory is enough."""
    num, blocks = case.network.num_devices, len(case.chain.blocks)
    fences = fences_of(case.network, case.seed)
    equal = np.arange(num + 1) / num
    by_speed = np.append(0.0, case.network.rates.cumsum()) / case.network.rates.sum()
    held = held_bytes(case.chain, case.work.batch)
    for name, shares in (
        ("equal stages", equal),
        ("stages by speed", by_speed),
    ):
        stages = _split(np.round(shares * blocks).astype(int).tolist())
        if all(held[own.first, own.end] <= case.network.memory[own.device] for own in stages):
            yield pipeline_row(name, case, plan_of(case.chain, case.network, stages), fences)


def _split(edges: Sequence[int]) -> list[Stage]:
    """Return the stages between edges, without empty ones."""
    stages = (Stage(n, first, end) for n, (first, end) in enumerate(pairwise(edges)))
    return [stage for stage in stages if stage.end > stage.first]
