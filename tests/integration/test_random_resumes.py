"""Runs with settings at random, resumed in another layout: the weights of the serial loop."""

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS
from support.families import tolerance_of
from support.layout_runs import JOB
from support.random_settings import draw, is_valid, workers_of
from support.resumed import stop_before_checkpoint
from support.runs import TOLERANCE, distance, merged, only_run, reference

SPLITS = [(name, (3,) if own.colocated else (2, 1)) for name, own in LAYOUTS.items()]
pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(100, 112))
def test_weights_are_those_of_the_serial_loop(
    seed, tree, tiny_families, prefect_backend, monkeypatch
):
    from digen_core.checkpoints.tensors import last_state
    from digen_core.transport.samples import read_samples
    from flows.post_train import post_train

    for key in [key for key in JOB if key.startswith("algorithm.")]:
        monkeypatch.delitem(JOB, key)  # not every algorithm has it
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
        rows = read_samples(folder / "samples").to_pylist()
        versions = {(row["iteration"], row["group"]): row["policy_version"] for row in rows}
        serial = reference(config, version_of=lambda *group: versions[group])
        state = last_state(folder)
        bound = max(TOLERANCE[config.model.dtype], tolerance_of(drawn.model))
        assert distance(state.weights, serial.weights) < bound
        assert distance(state.ema, serial.ema) < bound
    except Exception as error:
        error.add_note(f"{drawn}, then {second}")
        raise
