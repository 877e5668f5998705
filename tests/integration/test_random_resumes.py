"""Runs with settings at random, resumed in another layout: the weights of the serial loop.

Both are on single workers, or on gangs of two.
"""

from dataclasses import replace
from random import Random

import pytest

from support.random_settings import (
    check_weights,
    config_of,
    draw,
    gangs_of_two,
    is_valid,
    noting,
    single_workers,
)
from support.resumed import stop_before_checkpoint
from support.runs import only_run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SINGLE_AND_GANGS = (single_workers, gangs_of_two)


@pytest.mark.parametrize("seed", range(100, 120))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, prefect_backend):
    from flows.post_train import post_train

    random = Random(seed)
    drawn = draw(seed, tree, tiny_families, random.choice(SINGLE_AND_GANGS))
    first = drawn.case
    while True:
        other = random.choice(SINGLE_AND_GANGS)(random)
        second = replace(other, dtype=first.dtype, share=None)
        if is_valid(tree, second, drawn.changes):
            break

    with noting(drawn, second):
        stop_before_checkpoint(2, config_of(tree, first, drawn.changes))
        folder = only_run(tree)
        config = config_of(tree, second, drawn.changes)
        post_train(config, str(folder))
        check_weights(drawn, config, folder)
