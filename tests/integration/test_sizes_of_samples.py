"""Samples of several sizes in one run: the bodies of the tasks against the serial loop."""

import pytest
import torch

from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.rollout.sampler import initial_latent
from support.families import FAMILIES, TOKENS, frames_of, load_tiny, tolerance_of
from support.in_process import train_in_process
from support.runs import distance, initial, reference, tree_of

SIZES = {"flux": [[32, 32, 1], [16, 48, 1], [48, 32, 1]], "wan": [[32, 32, 5], [16, 32, 1]]}
CHANGES = {
    "flux": {"algorithm": {"trained_fraction": 0.7, "kl_reward": 5.0}},
    "wan": {"algorithm": {"trained_fraction": 0.7, "kl_coefficient": 0.1}},
}


def config_of(family: str, folder: str, tmp_path, **changes) -> RunConfig:
    tree = tree_of(folder, tmp_path)
    tree["model"] |= {"family": family, "max_sequence_length": TOKENS, "sizes": SIZES[family]}
    tree["model"] |= {"guidance_scale": 3.0, "device": "cpu"}
    tree["rewards"] = {"smooth_rewards:brightness": {"weight": 1.0}}
    tree["rollout"] |= {"prompts_per_iteration": 3, "fragment_size": 2, "batch_size": 12}
    tree["train"] |= {"pack_size": 3, "adam_eps": 1e-6}
    return RunConfig.model_validate({**tree, "num_iterations": 2, **CHANGES[family], **changes})


@pytest.mark.slow
@pytest.mark.parametrize("family", SIZES)
def test_weights_equal_the_serial_reference(family, tiny_families, tmp_path):
    config = config_of(family, tiny_families[family], tmp_path)
    weights, metrics = train_in_process(config, tmp_path)
    expected = reference(config)
    assert distance(expected.weights, initial(config)) > 1e-4
    tolerance = tolerance_of(family)
    assert distance(weights, expected.weights) < tolerance
    assert all(found["train/replay_error"] < tolerance for found in metrics)


def test_groups_take_the_sizes_in_turn():
    model = {"sizes": [[32, 32, 1], [16, 48, 1], [48, 32, 1]]}
    rollout = {"prompts_per_iteration": 2, "refill": 1}
    config = RunConfig.model_validate({"model": model, "rollout": rollout})
    a, b, c = config.model.sizes
    # Groups 2 and 3 take the place of groups 0 and 1.
    assert [config.size_of(0, group) for group in range(4)] == [a, b, a, b]
    assert [config.size_of(1, group) for group in range(4)] == [c, a, c, a]
    assert RunConfig().size_of(3, 5) == (32, 32, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_at_a_size_is_one_that_was_loaded_for_it(family, tiny_families):
    frames = 9 if family in VIDEO_FAMILIES else 1
    base = load_tiny(tiny_families[family], family)
    found = base.at_size((64, 32, frames))
    loaded = load_tiny(tiny_families[family], family, height=64, width=32, num_frames=frames)
    assert found.transformer is base.transformer
    assert found.latent_shape == loaded.latent_shape != base.latent_shape
    assert torch.equal(found.sigmas(5), loaded.sigmas(5))
    x = initial_latent(found, seed=0, group=(0, 0), samples=range(2))
    sigma, condition = torch.tensor([0.3, 0.8]), base.encode(["a red circle"] * 2)
    with torch.no_grad():
        velocity = found.velocity(x, sigma, condition)
        assert torch.equal(velocity, loaded.velocity(x, sigma, condition))
    assert torch.equal(found.decode(velocity), loaded.decode(velocity))
    assert base.at_size((32, 48, frames_of(family))) is base


def test_a_size_that_the_model_cannot_have_is_refused(tiny_families):
    with pytest.raises(UserError, match="16 x 20; this flux model needs multiples of 16"):
        load_tiny(tiny_families["flux"], "flux").at_size((16, 20, 1))
