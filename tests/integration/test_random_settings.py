"""Settings at random under a random layout: the weights of the serial loop.

What a test of its own holds for one setting may not hold beside others.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest

from support.families import tolerance_of
from support.layout_runs import JOB, Run
from support.random_settings import Drawn, draw
from support.runs import TOLERANCE, distance, reference

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(40))
def test_weights_are_those_of_the_serial_loop(seed, tree, tiny_families, run_layout, monkeypatch):
    for key in [key for key in JOB if key.startswith("algorithm.")]:
        monkeypatch.delitem(JOB, key)  # not every algorithm has it
    drawn = draw(seed, tree, tiny_families)
    try:
        check(drawn, run_layout)
    except Exception as error:
        error.add_note(str(drawn))
        raise


def check(drawn: Drawn, run_layout: Callable[..., Run]) -> None:
    """Compare the weights of a run with such settings."""
    from digen_core.checkpoints.tensors import last_state

    run = run_layout(drawn.case, **deepcopy(drawn.changes))
    versions = run.versions()
    serial = reference(run.config, version_of=lambda *group: versions[group])
    state = last_state(run.folder)
    bound = max(TOLERANCE[run.config.model.dtype], tolerance_of(drawn.model))
    assert distance(state.weights, serial.weights) < bound
    assert distance(state.ema, serial.ema) < bound
