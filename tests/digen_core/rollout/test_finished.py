"""What is asked of finished samples: by hand, whatever the fragments, what becomes of a NaN."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.maths.forward_process import noised
from digen_core.models.trainable import reference_weights, set_weights
from digen_core.rollout.finished import Answers, answers, is_asked, with_answers
from digen_core.rollout.references import ReferenceUse
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import DenoisedStep
from digen_core.rollout.steps import own_steps_of_group, steps_of_iteration
from digen_core.seeding import FORWARD_NOISE, noise_of
from digen_core.training.pairs import gather_pairs, rows_of
from digen_core.transport.arrays import to_arrays
from digen_core.transport.segment import Segment
from support.packs import make_packs
from support.tiny_policies import load_trainable, moved_weights

GROUP = (2, 1)
CONFIG = RunConfig.model_validate(
    {
        "seed": 7,
        "model": {"dtype": "float64"},
        "rollout": {"num_steps": 4, "prompts_per_iteration": 2, "group_size": 4},
        "algorithm": {"type": "dgpo", "num_levels": 2, "trained_fraction": 1.0},
    }
)
LEVELS = steps_of_iteration(CONFIG, GROUP[0]).trained


@pytest.fixture(scope="module")
def policy(tiny_flux):
    policy = load_trainable(tiny_flux)
    set_weights(policy, moved_weights(policy))
    return policy


def clean(policy) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, *policy.latent_shape, generator=generator, dtype=torch.float64)


def condition_of(policy, rows: Rows) -> dict[str, torch.Tensor]:
    return rows.conditions({GROUP: policy.encode(["a red circle"])})


def found_by(policy, x_0: torch.Tensor, samples: range) -> dict[int, torch.Tensor]:
    rows = Rows.of(GROUP, samples)
    condition, sigmas = condition_of(policy, rows), policy.sigmas(4)
    return answers(policy, x_0, condition, sigmas, levels=LEVELS, config=CONFIG, rows=rows).margins


def test_by_hand(policy):
    x_0, found = clean(policy), found_by(policy, clean(policy), range(4))
    assert sorted(found) == sorted(LEVELS)
    for level, values in found.items():
        noise = noise_of(
            policy.latent_shape, seed=7, purpose=FORWARD_NOISE, group=GROUP,
            samples=range(1), step=level + 1,
        ).double()  # fmt: skip
        sigma = policy.sigmas(4)[level].expand(4)
        x = noised(x_0, noise.expand_as(x_0), sigma)
        condition = {
            name: value.expand(4, *value.shape[1:])
            for name, value in policy.encode(["a red circle"]).items()
        }
        with torch.no_grad():
            own = policy.velocity(x, sigma, condition)
            with reference_weights(policy):
                base = policy.velocity(x, sigma, condition)
        target = noise - x_0
        expected = ((own - target) ** 2).flatten(1).mean(1)
        expected -= ((base - target) ** 2).flatten(1).mean(1)
        assert expected.abs().min() > 1e-8, "the policy is the base model"
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-12)


def test_fragments_make_no_difference(policy):
    x_0, whole = clean(policy), found_by(policy, clean(policy), range(4))
    for level in LEVELS:
        parts = [found_by(policy, x_0[s : s + 2], range(s, s + 2))[level] for s in (0, 2)]
        torch.testing.assert_close(torch.cat(parts), whole[level], rtol=1e-9, atol=1e-12)


def test_one_that_is_not_a_number_is_named_and_becomes_0(policy):
    x_0 = clean(policy)
    x_0[2] = 1e200  # its square is not a number any more
    last = DenoisedStep(3, x_0, x_0, None, nonfinite={0: "latent at step 3"})
    rows = Rows.of(GROUP, range(4))
    condition, sigmas = condition_of(policy, rows), policy.sigmas(4)
    found = with_answers(last, policy, condition, sigmas, config=CONFIG, rows=rows)
    assert found.nonfinite.keys() == {0, 2}
    assert found.nonfinite[0] == "latent at step 3", "what came first is told"
    assert found.nonfinite[2] == f"margin at the noise level of step {LEVELS[0]}"
    assert all(values[2] == 0 and values.isfinite().all() for values in found.margins.values())
    assert found.references == last.references
    others = {own.name for own in fields(last)} - {"margins", "references", "nonfinite"}
    assert all(getattr(found, own) is getattr(last, own) for own in others)


KEPT = CONFIG.model_copy(
    update={
        "algorithm": CONFIG.algorithm.model_copy(update={"kl_coefficient": 0.1}),
        "schedule": CONFIG.schedule.model_copy(update={"reference": "generation"}),
    }
)


def asked(config: RunConfig, policy) -> Answers:
    rows = Rows.of(GROUP, range(4))
    condition, sigmas = condition_of(policy, rows), policy.sigmas(4)
    return answers(
        policy, clean(policy), condition, sigmas, levels=LEVELS, config=config, rows=rows
    )


def test_velocities_of_the_reference_policy_are_kept_for_training(policy):
    found = asked(KEPT, policy)
    assert is_asked(KEPT)
    assert found.references.keys() == found.margins.keys() == set(LEVELS)
    segment = Segment(
        Fragment(GROUP[0], GROUP[1], 0, 0, 4),
        3,
        torch.stack([clean(policy)] * 2).numpy(),
        {},
        0,
        policy.sigmas(4).numpy(),
        "rollout-0",
        {level: value.numpy() for level, value in found.references.items()},
    )
    (pack,) = make_packs([segment.fragment], LEVELS, iteration=GROUP[0], pack_size=8)
    gathered = gather_pairs(
        pack,
        [segment],
        {GROUP[1]: to_arrays(policy.encode(["a red circle"]))},
        {GROUP[1]: np.ones(4)},
        torch.device("cpu"),
        KEPT,
        version=0,
        trained_from=0,
        trained_steps=LEVELS,
    )
    pairs = rows_of(gathered, slice(None), torch.device("cpu"))
    with torch.no_grad(), reference_weights(policy):
        expected = policy.velocity(pairs.x, pairs.sigma, pairs.condition)
    torch.testing.assert_close(pairs.reference_velocity, expected, rtol=1e-12, atol=1e-12)
    for level, values in asked(CONFIG, policy).margins.items():
        assert torch.equal(values, found.margins[level]), "margins are what they were"
    assert not asked(CONFIG, policy).references


def test_where_nothing_compares_nothing_is_asked(policy):
    plain = {"type": "diffusion_nft", "kl_coefficient": 0.0, "trained_fraction": 1.0}
    config = RunConfig.model_validate({**CONFIG.model_dump(), "algorithm": plain})
    assert not is_asked(config)
    assert not is_asked(config.asking("generation"))


def test_of_samples_with_their_own_steps_those_alone_are_asked_for(policy):
    use, x = ReferenceUse({0: [1, 3], 2: []}), clean(policy)
    rows = {
        name: value.expand(4, *value.shape[1:]).contiguous()
        for name, value in policy.encode(["a red circle"]).items()
    }
    sigma = policy.sigmas(4)[1].expand(4)
    with torch.no_grad(), reference_weights(policy):
        expected = policy.velocity(x, sigma, rows)
    with torch.no_grad():
        found = use.velocity(policy, 0, x, sigma, rows)
    torch.testing.assert_close(found[[1, 3]], expected[[1, 3]], rtol=1e-12, atol=1e-12)
    assert not found[[0, 2]].any()
    with torch.no_grad():
        assert use.velocity(policy, 2, x, sigma, rows).shape == x.shape, "all members ask"
    dance = {"type": "dance_grpo", "steps_drawn_for": "sample", "kl_coefficient": 0.1}
    config = RunConfig.model_validate(
        {
            **CONFIG.model_dump(exclude={"algorithm"}),
            "algorithm": dance,
            "rollout": {**CONFIG.rollout.model_dump(), "num_steps": 6, "transition": "dance"},
            "schedule": {"reference": "generation"},
        }
    )
    own = own_steps_of_group(config, *GROUP)
    found = ReferenceUse.of(config, Rows.of(GROUP, range(1, 3)), 6)
    assert found is not None
    assert {row for rows in found.rows.values() for row in rows} == {0, 1}
    for step, chosen in found.rows.items():
        assert list(chosen) == [row for row in (0, 1) if step in own[row + 1]]


def test_levels_of_all_epochs_are_asked_for():
    tree = CONFIG.model_dump(exclude={"algorithm"})
    tree["rollout"] |= {"num_steps": 12}
    tree["train"] |= {"epochs": 2, "updates_per_iteration": 2}
    awm = {"type": "awm", "num_levels": 2, "own_levels": True}
    config = RunConfig.model_validate({**tree, "algorithm": awm}).asking("generation")
    own, size = own_steps_of_group(config, *GROUP), config.rollout.group_size
    found = ReferenceUse.of(config, Rows.of(GROUP, range(1, 3)), 12)
    assert found is not None
    assert len(own) == 2 * size
    for step, chosen in found.rows.items():
        asked = [step in {*own[row + 1], *own[size + row + 1]} for row in (0, 1)]
        assert list(chosen) == [row for row in (0, 1) if asked[row]]
    assert any(found.rows.values())
