"""Updates that cannot be dealt, or trained, are one line before anything starts."""

import pytest

from deployments.overrides import config_of
from digen_core.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--train.updates-per-iteration", "3", "--train.epochs", "2"],
            "train.updates_per_iteration is 3, but train.epochs is 2, and each epoch has as many",
        ),
        (
            ["--train.epochs", "2"],
            "train.updates_per_iteration is 1, but train.epochs is 2",
        ),
        (
            ["--train.updates-per-iteration", "3", "--rollout.prompts-per-iteration", "4"],
            "is 3 in 1 epochs, but an iteration has 4 groups (train.dealt_by) to deal to the 3",
        ),
        (
            [
                *("--train.updates-per-iteration", "5", "--train.dealt-by", "samples"),
                *("--rollout.prompts-per-iteration", "4", "--rollout.group-size", "8"),
            ],
            "an iteration has 32 samples (train.dealt_by) to deal to the 5 updates of each",
        ),
        (["--train.updates-per-iteration", "0"], "train.updates_per_iteration"),
        (["--train.updates-per-iteration", "1000"], "train.updates_per_iteration"),
        (["--train.dealt-by", "pairs"], "train.dealt_by"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(ConfigError) as found:
        config_of(options)
    assert message in str(found.value)


def test_what_can_be():
    config = config_of(["--train.updates-per-iteration", "4", "--train.epochs", "2"])
    assert config.pairs_per_update * 4 == config.num_pairs * 2
    assert config.num_updates == 4 * config.num_iterations
    assert config.num_behind == 3


@pytest.mark.parametrize(
    ("options", "keeps", "velocities"),
    [
        ([], False, 0),
        (["--algorithm.type", "flow_dppo"], False, 0),
        (["--algorithm.type", "diffusion_nft"], True, 0.75),
        (["--algorithm.type", "diffusion_nft", "--algorithm.old-policy-decay", "ramp"], True, 1),
        (["--algorithm.correction", "icepop"], True, 0.75),
    ],
)
def test_who_compares_with_the_start_of_an_iteration_keeps_it(options, keeps, velocities):
    """Of four updates all but the first ask for its velocities."""
    config = config_of([*options, "--train.updates-per-iteration", "4"])
    assert (config.keeps_start, config.other_velocities) == (keeps, velocities)
    assert not config_of(options).keeps_start


@pytest.mark.parametrize(
    ("every", "ends", "kept"),
    [
        (1, (4, 8, 12), (4, 8, 12)),
        (2, (4, 8, 12, 16), (8, 16)),
        (1, (1, 5, 6, 7), (1, 5, 6, 7)),  # updates are skipped
        (2, (1, 4, 5, 9, 12), (5,)),
    ],
)
def test_checkpoints_are_of_what_iterations_end_with(every, ends, kept):
    config = config_of(["--train.updates-per-iteration", "4", "--checkpoints.every", str(every)])
    assert tuple(version for version in ends if config.is_kept(version)) == kept
