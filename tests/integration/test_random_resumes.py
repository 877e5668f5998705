"""Runs with settings at random, resumed in another layout: the weights of the serial loop."""

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS
from support.random_settings import check_weights, draw, is_valid, workers_of
from support.resumed import stop_before_checkpoint
from support.runs import merged, only_run

SPLITS = [(name, (3,) if own.colocated else (2, 1)) for name, own in LAYOUTS.items()]
pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(100, 112))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, prefect_backend):
    from flows.post_train import post_train

    drawn, random = draw(seed, tree, tiny_families), Random(seed)
    others = [replace(drawn.case, layout=layout, workers=own, share=None) for layout, own in SPLITS]
    second = random.choice([own for own in others if is_valid(tree, own, drawn.changes)])

    def config_of(case) -> RunConfig:
        changes = {**case.changes, **workers_of(case)[0], **drawn.changes}
        return RunConfig.model_validate(merged(tree, deepcopy(changes)))

    try:
        stop_before_checkpoint(2, config_of(drawn.case))
        folder = only_run(tree)
        config = config_of(second)
        post_train(config, str(folder))
        check_weights(drawn, config, folder)
    except Exception as error:
        error.add_note(f"{drawn}, then {second}")
        raise
