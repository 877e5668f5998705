"""What runs with settings at random kept: replays make its versions, evaluations its scores.

They are on single workers, or on gangs of two; a replay is computed in this process.
"""

import json
from pathlib import Path
from random import Random

import pytest

from deployments.cli import run as digen
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.reference.replay import kept_iteration, replay_config
from support.families import tolerance_of
from support.random_settings import (
    Drawn,
    check_weights,
    config_of,
    draw,
    gangs_of_two,
    noting,
    single_workers,
)
from support.runs import TOLERANCE
from tasks.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

KEPT = {
    "tracking.keep_trajectories": "all",
    "checkpoints.keep_every": 1,
    "evaluation.every": 2,
    "evaluation.samples_per_prompt": 2,
}
NOT_REPLAYED = (
    *("train.updates_per_iteration is", "algorithm.kl_reward is", "the margins of which"),
    "made no update",
)
"""What refusals say that the docs know."""


@pytest.mark.parametrize("seed", range(400, 416))
def test_it_is_read_again(seed, tree, tiny_families, prefect_backend, capfd):
    from flows.post_train import post_train

    case_of = Random(seed).choice([single_workers, gangs_of_two])
    drawn = draw(seed, tree, tiny_families, case_of)
    config = config_of(tree, drawn.case, drawn.changes | KEPT)
    with noting(drawn, drawn.case.changes):
        folder = Path(post_train(config).run_dir)
        check_weights(drawn, config, folder)
        check_replays(drawn, config, folder)
        check_evaluation(folder)
        for command in (["report"], ["explain"], ["export", "--for", "hub"]):
            name, *options = command
            code, (_, err) = digen([name, str(folder), *options]), capfd.readouterr()
            assert code == 0 or "trains all weights" in err


def check_replays(drawn: Drawn, config: RunConfig, folder: Path) -> None:
    """Check that each iteration, replayed, makes the version that the run made."""
    bound = max(TOLERANCE[config.model.dtype], tolerance_of(drawn.model))
    for iteration in range(config.num_iterations):
        try:
            kept = kept_iteration(folder, replay_config(folder, {}), iteration)
        except UserError as error:
            if not any(why in str(error) for why in NOT_REPLAYED):
                raise
        else:
            difference = replay(folder, kept).difference
            assert difference is not None
            assert difference < bound


def check_evaluation(folder: Path) -> None:
    """Check that the last version, evaluated again, has the scores that the run gave it."""
    assert digen(["evaluate", str(folder)]) == 0
    once, again = (
        json.loads((folder / "evaluation" / f"{tag}.json").read_text())["rewards"]
        for tag in ("after", "again-1")
    )
    assert again == pytest.approx(once, abs=1e-5)
