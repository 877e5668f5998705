"""Settings at random under a random layout: the weights of the serial loop.

What a test of its own holds for one setting may not hold beside others.
"""

from copy import deepcopy

import pytest

from support.random_settings import check_weights, draw, forget_algorithm, noting, single_workers

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(40))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, run_layout, monkeypatch):
    forget_algorithm(monkeypatch)
    drawn = draw(seed, tree, tiny_families, single_workers)
    with noting(drawn):
        run = run_layout(drawn.case, **deepcopy(drawn.changes))
        check_weights(drawn, run.config, run.folder)
