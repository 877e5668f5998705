"""Prompts of an iteration: shuffled epochs, dealt out without replacement."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from digen_core.config import ConfigError, RunConfig
from digen_core.data import prompts_of_iteration, prompts_of_refills, read_prompts
from flows.iteration import round_of

counts = st.integers(1, 6)


def named(number: int) -> list[str]:
    return [f"prompt {index}" for index in range(number)]


def dealt(prompts: list[str], num_iterations: int, count: int, seed: int = 0) -> list[str]:
    """The prompts of the first iterations, one after the other."""
    return [
        prompt
        for iteration in range(num_iterations)
        for prompt in prompts_of_iteration(prompts, iteration, count, seed=seed)
    ]


def test_by_hand():
    # 3 prompts, 2 an iteration: iteration 1 takes the last of epoch 0 and the first of epoch 1.
    prompts = ["a", "b", "c"]
    epochs = [prompts_of_iteration(prompts, epoch, 3, seed=5) for epoch in range(2)]
    assert prompts_of_iteration(prompts, 0, 2, seed=5) == epochs[0][:2]
    assert prompts_of_iteration(prompts, 1, 2, seed=5) == [epochs[0][2], epochs[1][0]]
    assert prompts_of_iteration(prompts, 2, 2, seed=5) == epochs[1][1:]


@given(st.integers(1, 8), counts, st.integers(0, 2**32))
def test_every_prompt_comes_once_in_each_epoch(number, count, seed):
    prompts = named(number)
    order = dealt(prompts, 3 * number, count, seed)  # whole epochs: 3 * count of them
    for epoch in range(3 * count):
        assert sorted(order[epoch * number : (epoch + 1) * number]) == prompts


@given(st.integers(1, 8), counts, counts)
def test_the_order_does_not_depend_on_how_many_an_iteration_takes(number, one, other):
    prompts = named(number)
    assert dealt(prompts, other, one) == dealt(prompts, one, other)


@given(st.integers(1, 8), counts, st.integers(0, 3), st.integers(0, 2))
def test_other_prompts_take_the_place_of_an_iterations_own(number, count, rounds, iteration):
    prompts = named(number)
    own = prompts_of_iteration(prompts, iteration, count, seed=3)
    others = prompts_of_refills(prompts, own, iteration, rounds, seed=3)
    assert len(others) == rounds * count
    assert set(others).isdisjoint(own) or set(own) == set(prompts)
    num_new = min(len(others), len(set(prompts) - set(own)) or number)
    assert len(set(others[:num_new])) == num_new  # none twice while there are others
    assert (
        others[: len(own)] == prompts_of_refills(prompts, own, iteration, 1, seed=3)[: len(others)]
    )


def test_epochs_and_seeds_are_shuffled_differently():
    prompts = named(20)
    orders = {tuple(prompts_of_iteration(prompts, epoch, 20, seed=0)) for epoch in range(5)}
    orders |= {tuple(prompts_of_iteration(prompts, 0, 20, seed=seed)) for seed in range(1, 5)}
    assert len(orders) == 9
    assert tuple(prompts) not in orders


def test_every_prompt_may_come_first():
    firsts = Counter(
        prompts_of_iteration(named(4), 0, 1, seed=seed)[0] for seed in range(400)
    )  # 100 each, standard deviation 8.7
    assert set(firsts) == set(named(4))
    assert max(firsts.values()) < 145


def test_equal_prompts_are_prompts_of_their_own():
    assert Counter(dealt(["a", "a", "b"], 3, 2)) == {"a": 4, "b": 2}


def test_a_round_has_its_prompts_and_one_window_for_all():
    config = RunConfig.model_validate(
        {"rollout": {"prompts_per_iteration": 3}, "algorithm": {"window": (2, 0, 7)}}
    )
    rounds = [round_of(config, named(10), index) for index in range(30)]
    assert rounds == [round_of(config, named(10), index) for index in range(30)]
    for index, round_ in enumerate(rounds):
        assert round_.index == index
        assert round_.prompts == prompts_of_iteration(named(10), index, 3, seed=0)
        assert round_.steps.noisy == round_.steps.trained
        assert len(round_.steps.trained) == 2
    assert {round_.steps.trained[0] for round_ in rounds} == {0, 1, 2, 3, 4, 5}


def test_a_round_without_a_window_leaves_out_the_last_step():
    assert round_of(RunConfig(), named(10), 0).steps.trained == tuple(range(7))  # floor(0.99 * 8)


def test_prompts_are_the_lines_that_are_not_empty(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(" a red circle \n\n\ttwo blue squares\n \n", encoding="utf-8")
    assert read_prompts(str(path)) == ["a red circle", "two blue squares"]


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe\x00"])
def test_a_file_without_prompts_is_a_config_error(tmp_path, content):
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_prompts(str(path))
