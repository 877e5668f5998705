"""The serial reference: what must hold for any algorithm setting."""

import numpy as np
import pytest
import torch

from digen_core.config.model import ModelConfig
from digen_core.config.rewards.own import FunctionConfig
from digen_core.config.run import RunConfig
from digen_core.data.draws import prompts_of_iteration
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.models.trainable import initial_weights, set_weights, trainable_parameters
from digen_core.reference import group as reference_group
from digen_core.reference import loop as reference
from digen_core.reference.loop import post_train_serially
from digen_core.rollout.evaluation import sample_images
from support.tiny_policies import LORA, load_trainable

TEXTS = ["a red circle", "a blue square", "two green triangles"]
PROMPTS = [Prompt(text) for text in TEXTS]


def brightness(images, prompts):
    """Mean of the red channel minus half the blue one: smooth."""
    return (images[:, 0] - images[:, 2] / 2).mean(dim=(1, 2))


def flat(images, prompts):
    return torch.full((len(images),), 0.3)


@pytest.fixture
def policy_of(tiny_flux):
    """Return a function that loads what a config trains."""

    def load(config: RunConfig):
        keep = config.keeps_reference
        return load_trainable(tiny_flux, "float64", config.train.lora, keep_reference=keep)

    return load


@pytest.fixture
def train(policy_of):
    """Return a function that runs two iterations, of two groups of four."""

    def run(reward=brightness, version_of=None, **changes):
        config = config_of(**changes)
        rewards = {"tests:judge": reward}
        policy = policy_of(config)
        return post_train_serially(config, policy, PROMPTS, rewards, version_of=version_of)

    return run


def config_of(
    algorithm=None, train=None, rollout=None, num_iterations=2, seed=0, weight=1.0
) -> RunConfig:
    lora = {"rank": 4, "alpha": 8}
    shape = {"prompts_per_iteration": 2, "group_size": 4, "fragment_size": 4, "num_steps": 3}
    return RunConfig.model_validate(
        {
            "seed": seed,
            "num_iterations": num_iterations,
            "rewards": {"tests:judge": weight},
            "rollout": {**shape, **(rollout or {})},
            "algorithm": algorithm or {},
            "train": {"learning_rate": 1e-3, "lora": lora, **(train or {})},
        }
    )


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name])


def distance(left, right):
    return np.max([np.abs(left[name] - right[name]).max() for name in right])


def test_a_run_is_decided_by_its_config(train):
    torch.manual_seed(1)
    first = train()
    torch.manual_seed(2)
    second = train()
    assert_equal(first.weights, second.weights)
    assert_equal(first.ema, second.ema)
    assert first.metrics == second.metrics
    assert distance(first.weights, train(seed=1).weights) > 1e-3


def test_one_row_of_metrics_an_iteration(policy_of):
    config, seen = config_of(num_iterations=3), []
    run = post_train_serially(
        config,
        policy_of(config),
        PROMPTS,
        {"tests:judge": brightness},
        on_iteration=lambda index, row: seen.append((index, row)),
    )
    assert seen == list(enumerate(run.metrics))
    assert len(run.metrics) == 3
    for row in run.metrics:
        assert row.keys() == {
            "reward/mean", "reward/tests:judge/score", "groups/zero_variance", "train/grad_norm",
            "numerics/dropped_groups", "numerics/skipped_updates",
        }  # fmt: skip
        assert row["groups/zero_variance"] == 0
        assert row["train/grad_norm"] > 0


def test_equal_rewards_everywhere_leave_version_zero(policy_of):
    config = config_of()
    policy = policy_of(config)
    run = post_train_serially(config, policy, PROMPTS, {"tests:judge": flat})
    start = initial_weights(policy, config.train.lora, seed=0)
    assert_equal(run.weights, start)
    assert_equal(run.ema, start)
    assert [row["groups/zero_variance"] for row in run.metrics] == [2, 2]
    assert [row["train/grad_norm"] for row in run.metrics] == [0, 0]


def test_a_neutral_reward_that_always_fails_changes_no_weight(policy_of, train):
    config = config_of()
    down = FunctionConfig(function="tests:down", weight=3.0, on_failure="neutral")
    both = config.model_copy(update={"rewards": {**config.rewards, "tests:down": down}})

    def fails(images, prompts):
        raise ConnectionError("down")

    rewards = {"tests:judge": brightness, "tests:down": fails}
    run = post_train_serially(both, policy_of(both), PROMPTS, rewards)
    alone = train()
    assert_equal(run.weights, alone.weights)
    for row, expected in zip(run.metrics, alone.metrics, strict=True):
        assert row == {**expected, "reward/tests:down/failed": 1.0}


def test_a_group_with_equal_rewards_contributes_nothing(train):
    first, second = (p.text for p in prompts_of_iteration(PROMPTS, 0, 2, seed=0))

    def flat_in(group, value):
        def reward(images, prompts):
            values = brightness(images, prompts)
            return torch.full_like(values, value) if prompts[0] == group else values

        return reward

    runs = [
        train(flat_in(second, value), num_iterations=1, train={"weight_decay": 0})
        for value in (0.0, 0.9)
    ]
    assert_equal(runs[0].weights, runs[1].weights)
    assert runs[0].metrics[0]["groups/zero_variance"] == 1
    assert runs[0].metrics[0]["reward/mean"] < runs[1].metrics[0]["reward/mean"]
    # The gradient is a sum over groups: each group alone, added up, is both together.
    alone = [train(flat_in(group, 0.0), num_iterations=1) for group in (first, second)]
    norms = [run.metrics[0]["train/grad_norm"] for run in (*alone, train(num_iterations=1))]
    assert abs(norms[0] - norms[1]) < norms[2] < norms[0] + norms[1]


def flat_for(*groups):
    """Return a reward that is equal for all samples of some prompts."""

    def reward(images, prompts):
        values = brightness(images, prompts)
        return torch.full_like(values, 0.5) if prompts[0] in groups else values

    return reward


TWO = {"updates_per_iteration": 2}


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("name", "key", "narrow", "wide"),
    [
        ("flow_grpo", "clip_range", 1e-7, 0.9),
        ("grpo_guard", "clip_range", 1e-9, 0.9),
        ("flow_dppo", "max_divergence", 1e-13, 10.0),
    ],
)
def test_bounds_act_from_the_second_update_on(train, name, key, narrow, wide):
    """Of one update every ratio is 1, and none is ever reached."""
    bounds = [{"type": name, key: bound} for bound in (narrow, wide)]
    assert_equal(*(train(algorithm=own).weights for own in bounds))
    assert distance(*(train(algorithm=own, train=TWO).weights for own in bounds)) > 1e-5


def test_an_update_is_the_mean_over_its_own_share_of_the_samples(train):
    """The other one has no signal: its share of the loss is half of that of both as one."""
    first, _ = (prompt.text for prompt in prompts_of_iteration(PROMPTS, 0, 2, seed=0))
    one, two = (train(flat_for(first), num_iterations=1, train=own).metrics[0] for own in ({}, TWO))
    assert one["groups/zero_variance"] == two["groups/zero_variance"] == 1
    assert two["train/grad_norm"] == pytest.approx(2 * one["train/grad_norm"], rel=1e-12)


def test_a_skipped_group_trains_nobody_in_any_update_of_its_best_samples(train):
    """No sample of it is chosen; of the others two of four are dealt."""

    def one_flat(images, prompts):
        return flat(images, prompts) if prompts[0] == TEXTS[0] else brightness(images, prompts)

    shares = {"rollout": {"prompts_per_iteration": 3}, "train": {"updates_per_iteration": 3}}
    run = train(one_flat, algorithm={"best_of": 2}, **shares)
    assert [row["groups/zero_variance"] for row in run.metrics] == [1, 1]
    assert all(row["train/grad_norm"] > 0 for row in run.metrics)


def test_a_group_without_signal_is_replaced_by_one_of_another_prompt(train):
    first, second = (prompt.text for prompt in prompts_of_iteration(PROMPTS, 0, 2, seed=0))
    (third,) = {prompt.text for prompt in PROMPTS} - {first, second}
    seen = []

    def reward(images, prompts):
        seen.append(prompts[0])
        return flat_for(second)(images, prompts)

    settings = {"num_iterations": 1}
    filled = train(reward, rollout={"refill": 1}, **settings)
    assert seen == [first, second, third]
    assert filled.metrics[0]["groups/refilled"] == 1
    assert filled.metrics[0]["groups/zero_variance"] == 0
    # Gradients add up: without signal in the new one either, it is that of the first group.
    never = train(flat_for(second, third), rollout={"refill": 3}, **settings).metrics[0]
    assert (never["groups/refilled"], never["groups/zero_variance"]) == (3, 1)
    alone = train(flat_for(second), **settings).metrics[0]
    assert never["train/grad_norm"] == alone["train/grad_norm"]
    assert filled.metrics[0]["train/grad_norm"] != alone["train/grad_norm"]


def test_nothing_is_replaced_where_all_groups_have_a_signal(train):
    plain, filled = train(), train(rollout={"refill": 2})
    assert_equal(plain.weights, filled.weights)


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0])
def test_without_scaling_the_gradient_is_linear_in_the_rewards(train, factor):
    runs = [
        train(weight=weight, num_iterations=1, algorithm={"advantage_scale": "none"})
        for weight in (1.0, factor)
    ]
    one, scaled = (run.metrics[0]["train/grad_norm"] for run in runs)
    assert scaled == pytest.approx(abs(factor) * one, rel=1e-9)


def test_scaled_by_the_group_only_the_order_of_magnitude_of_eps_matters(train):
    algorithm = {"advantage_eps": 1e-12}
    runs = [train(weight=weight, algorithm=algorithm) for weight in (1.0, 8.0)]
    assert distance(runs[0].weights, runs[1].weights) < 1e-7


def test_the_kl_term_acts_once_the_policy_has_moved(train):
    for kl in ("gaussian", "flowgrpo"):
        algorithm = {"kl_coefficient": 10.0, "kl": kl}
        # at the base model the divergence is at its minimum: no gradient
        first, plain = train(num_iterations=1, algorithm=algorithm), train(num_iterations=1)
        assert first.metrics[0]["train/grad_norm"] == pytest.approx(
            plain.metrics[0]["train/grad_norm"], rel=1e-12
        )
        moved = train(algorithm=algorithm)
        assert distance(moved.weights, train().weights) > 1e-5


@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8}, None], ids=["adapters", "all weights"])
def test_a_kl_in_the_reward_acts_once_the_policy_has_moved(train, lora):
    train_settings = {"lora": lora, "learning_rate": 1e-2 if lora else 1e-3}
    runs = [train(algorithm={"kl_reward": c}, train=train_settings) for c in (0.0, 1e3)]
    plain, pulled = (run.metrics for run in runs)
    assert pulled[0]["train/grad_norm"] == pytest.approx(plain[0]["train/grad_norm"], rel=1e-12)
    assert pulled[0]["reward/kl"] == 0 < pulled[1]["reward/kl"]
    assert "reward/kl" not in plain[1]
    assert pulled[1]["reward/mean"] == plain[1]["reward/mean"]  # told without it
    assert pulled[1]["train/grad_norm"] != pytest.approx(plain[1]["train/grad_norm"], rel=1e-3)


def test_a_window_trains_its_steps_only(policy_of, monkeypatch):
    noises, trained = [], []

    def noise_of(*args, step, **settings):
        noises.append(step)
        return original_noise(*args, step=step, **settings)

    def loss(config, group, step):
        trained.append(step)
        return original_loss(config, group, step)

    original_noise, original_loss = reference_group.noise_of, reference.replay_losses
    monkeypatch.setattr(reference_group, "noise_of", noise_of)
    monkeypatch.setattr(reference, "replay_losses", loss)
    config = config_of(num_iterations=1, algorithm={"window": (1, 1, 2)})
    post_train_serially(config, policy_of(config), PROMPTS, {"tests:judge": brightness})
    assert noises == [2] * 2  # the noise after step 1, of 2 groups
    assert trained == [1, 1]


def test_windows_of_one_place_are_that_place(train):
    # (2, 0, 2) can only start at 0: the first two steps, as the default of 3 steps trains
    assert_equal(train(algorithm={"window": (2, 0, 2)}).weights, train().weights)


def test_the_average_is_off_on_request_and_lags_otherwise(train):
    off = train(train={"ema_decay": 0})
    assert off.ema is off.weights
    on = train()
    assert_equal(on.weights, off.weights)
    assert 0 < distance(on.ema, on.weights) < 2e-3


def test_the_policy_is_left_with_the_last_weights(policy_of):
    config = config_of(num_iterations=1)
    policy = policy_of(config)
    run = post_train_serially(config, policy, PROMPTS, {"tests:judge": brightness})
    x = torch.zeros(1, *policy.latent_shape, dtype=torch.float64)
    inputs = (x, torch.tensor([0.5]), policy.encode(["a red circle"]))
    before = policy.velocity(*inputs)
    set_weights(policy, run.weights)
    assert torch.equal(policy.velocity(*inputs), before)


def test_the_reward_rises(policy_of):
    """The sign of it all, on noise that was not trained on."""
    config = config_of(
        num_iterations=4, rollout={"group_size": 8, "fragment_size": 8}, train={"lora": None}
    )
    policy, rewards = policy_of(config), []
    # The last norm of the tiny VAE takes out the mean; here an image is the mean of its latent.
    policy.decode = lambda x: x.mean((1, 2)).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)

    def judge(weights):
        set_weights(policy, weights)
        settings = {"num_samples": 4, "num_steps": 3, "seed": 1}
        rewards.append(
            brightness(sample_images(policy, [*map(Prompt, TEXTS)], range(3), **settings), TEXTS)
        )

    judge(initial_weights(policy, None, seed=0))
    judge(post_train_serially(config, policy, PROMPTS, {"tests:judge": brightness}).weights)
    assert (rewards[1] > rewards[0]).all()


def test_the_newest_version_generates_unless_told_otherwise(train):
    assert_equal(train(version_of=lambda iteration, group: iteration).weights, train().weights)


def test_a_stale_group_is_what_its_version_makes_of_the_prompts_of_the_iteration(train):
    def stale(iteration, group):
        return 0

    still = {"learning_rate": 1e-30}  # version 1 is version 0
    row, frozen = (train(version_of=stale).metrics[1], train(train=still).metrics[1])
    assert row["reward/mean"] == frozen["reward/mean"] != train().metrics[1]["reward/mean"]
    # The ratio of version 1 to the behaviour log-prob of version 0 is not 1: clipping acts.
    algorithms = [{"clip_range": width} for width in (1e-8, 0.99)]
    clipped, free = (train(version_of=stale, algorithm=a).metrics for a in algorithms)
    assert clipped[0]["train/grad_norm"] == free[0]["train/grad_norm"]
    assert clipped[1]["train/grad_norm"] < 0.99 * free[1]["train/grad_norm"]


def test_each_group_has_a_version_of_its_own(train):
    mixed = train(version_of=lambda iteration, group: iteration if group else 0)
    assert mixed.metrics[0] == train().metrics[0]
    for other in (train(), train(version_of=lambda iteration, group: 0)):
        assert distance(mixed.weights, other.weights) > 1e-5


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapters", "all weights"])
def test_in_half_precision_masters_are_trained(tiny_flux, lora):
    """By steps of 1e-6, most of which the policy's own numbers do not show."""
    config = config_of(train={"learning_rate": 1e-6, "lora": lora and lora.model_dump()})
    config = config.model_copy(update={"model": ModelConfig(dtype="bfloat16")})
    policy = load_trainable(tiny_flux, "bfloat16", lora)
    start = initial_weights(policy, lora, seed=0)
    run = post_train_serially(config, policy, PROMPTS, {"tests:judge": brightness})
    moved, shown = [], []
    for name, own in trainable_parameters(policy).items():
        value, before = run.weights[name], start[name]
        assert (value.dtype, own.dtype) == (np.float32, torch.bfloat16)
        assert torch.equal(own, torch.from_numpy(value).bfloat16())
        moved.append((value != before).ravel())
        shown.append((own != torch.from_numpy(before).bfloat16()).numpy().ravel())
    moved, shown = np.concatenate(moved), np.concatenate(shown)
    assert moved.mean() > 0.3
    assert shown.mean() < moved.mean() - 0.2


def test_float16_is_refused():
    config = RunConfig.model_validate({"model": {"dtype": "float16"}})
    with pytest.raises(UserError, match=r"model\.dtype is float16, whose loss the serial loop"):
        post_train_serially(config, None, [], {})


def test_an_expert_without_pairs_is_stepped_as_well(tiny_families):
    """Also where an update has one step of one group; its gradient is 0."""
    rollout = {"prompts_per_iteration": 1, "num_steps": 2}
    config = config_of({"trained_fraction": 0.5}, rollout=rollout)
    policy = load_trainable(tiny_families["wan-a14b"], "float64", LORA, family="wan")
    start = initial_weights(policy, LORA, seed=0)
    run = post_train_serially(config, policy, PROMPTS, {"tests:judge": brightness})
    moved = {n.partition(".")[0] for n, own in run.weights.items() if (own != start[n]).any()}
    assert moved == {"transformer", "transformer_2"}
