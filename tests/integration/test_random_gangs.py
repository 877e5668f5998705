"""Settings at random on gangs: the weights of the serial loop, whatever members share.

Members deal rows, tokens or weights, or hold the blocks in stages; some devices are single workers.
"""

from copy import deepcopy
from random import Random

import pytest

from digen_core.control.layout import LAYOUTS
from support.gang_runs import SHARED, SIZES, GangCase, cluster_of
from support.layout_runs import run_case
from support.random_settings import check_weights, draw, forget_algorithm, how, noting

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

DEVICES = ("gang-0", "gang-1", "three", "single")
STAGES = {"parallel.stages_by_size": [[1, 3], [1, 1, 2]]}
"""Of models with four blocks; others have as many stages as all gangs have members."""


@pytest.fixture(scope="module")
def address(prefect_backend):
    """Address of a cluster of two gangs of two workers, one of three, and a single worker."""
    with cluster_of(*DEVICES) as address:
        yield address


def draw_case(random: Random) -> GangCase:
    layout = random.choice(list(LAYOUTS))
    least = 1 if LAYOUTS[layout].colocated else 2
    while True:
        rollout, *trainers = random.sample(DEVICES, random.choice([least, 2, 3]))
        sizes = {SIZES[name] for name in (rollout, *trainers)} - {1}
        if sizes:
            break
    staged = [STAGES, *([{"parallel.stages": size} for size in sizes] * (len(sizes) == 1))]
    settings = random.choice([*SHARED, *staged])
    return GangCase(
        layout,
        rollout=rollout,
        trainers=tuple(trainers),
        settings=settings,
        **how(random, layout),
    )


@pytest.mark.parametrize("seed", range(24))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, address, monkeypatch):
    forget_algorithm(monkeypatch)
    drawn = draw(seed, tree, tiny_families, draw_case)
    with noting(drawn, drawn.case.changes):
        run = run_case(drawn.case, tree, address, monkeypatch, **deepcopy(drawn.changes))
        check_weights(drawn, run.config, run.folder)
