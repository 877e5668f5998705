"""Prompts of an iteration: shuffled epochs, dealt out without replacement, by weight."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from digen_core.config.run import RunConfig
from digen_core.data.draws import emptied, prompts_of_iteration, prompts_of_refills
from digen_core.data.prompts import Prompt
from digen_core.seeding import PROMPT_ORDER, numpy_generator_for
from flows.runtime.iterations.iteration import round_of

counts = st.integers(1, 6)


def named(number: int) -> list[Prompt]:
    return [Prompt(f"prompt {index}", {"index": index}) for index in range(number)]


def weighted(weights) -> list[Prompt]:
    return [Prompt(str(index), weight=weight) for index, weight in enumerate(weights)]


def dealt(prompts, num_iterations: int, count: int, seed: int = 0) -> list[str]:
    """The texts of the first iterations' prompts, one after the other."""
    return [
        prompt.text
        for iteration in range(num_iterations)
        for prompt in prompts_of_iteration(prompts, iteration, count, seed=seed)
    ]


def test_by_hand():
    # 3 prompts, 2 an iteration: iteration 1 takes the last of epoch 0 and the first of epoch 1.
    prompts = named(3)
    epochs = [prompts_of_iteration(prompts, epoch, 3, seed=5) for epoch in range(2)]
    assert prompts_of_iteration(prompts, 0, 2, seed=5) == epochs[0][:2]
    assert prompts_of_iteration(prompts, 1, 2, seed=5) == [epochs[0][2], epochs[1][0]]
    assert prompts_of_iteration(prompts, 2, 2, seed=5) == epochs[1][1:]


def test_an_epoch_without_weights_is_a_shuffle_by_seed_and_epoch():
    for epoch in range(3):
        order = numpy_generator_for(7, PROMPT_ORDER, epoch).permutation(9)
        found = prompts_of_iteration(named(9), epoch, 9, seed=7)
        assert [prompt.metadata["index"] for prompt in found] == order.tolist()


@given(st.integers(1, 8), counts, st.integers(0, 2**32), st.sampled_from([1.0, 0.1, 3.0]))
def test_every_prompt_comes_once_in_each_epoch(number, count, seed, weight):
    prompts = weighted([weight] * number)
    order = dealt(prompts, 3 * number, count, seed)  # whole epochs: 3 * count of them
    for epoch in range(3 * count):
        assert sorted(order[epoch * number : (epoch + 1) * number]) == [p.text for p in prompts]


@given(st.lists(st.floats(0, 5), min_size=1, max_size=8).filter(any), counts, st.integers(0, 2**32))
def test_the_order_does_not_depend_on_how_many_an_iteration_takes(weights, one, seed):
    prompts = weighted(weights)
    assert dealt(prompts, 3, one, seed) == dealt(prompts, one, 3, seed)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any), st.integers(0, 2**32))
def test_in_an_epoch_a_prompt_comes_as_often_as_its_weight_says(weights, seed):
    number, total = len(weights), sum(weights)
    found = Counter(dealt(weighted(weights), 1, number, seed))
    for index, weight in enumerate(weights):
        exact = number * weight / total
        assert np.floor(exact - 1e-9) <= found[str(index)] <= np.ceil(exact + 1e-9)


def test_in_the_mean_a_prompt_comes_as_often_as_its_weight_says():
    # 4 prompts, weights 1 1 1 5: in the mean of epochs 0.5, 0.5, 0.5 and 2.5 of 4 draws.
    found = Counter(dealt(weighted([1, 1, 1, 5]), 400, 4))
    assert [found[str(index)] / 400 for index in range(4)] == pytest.approx(
        [0.5, 0.5, 0.5, 2.5], abs=0.1
    )


def test_copies_of_a_prompt_are_spread_over_the_epoch():
    # Weights 3 1 1 1 0 0: the heavy prompt is 3 of 6 draws, one in each third of the epoch.
    for seed in range(20):
        order = dealt(weighted([3, 1, 1, 1, 0, 0]), 1, 6, seed)
        places = [place for place, text in enumerate(order) if text == "0"]
        assert len(places) == 3
        assert max(np.diff(places)) <= 3
        assert places[0] <= 2
        assert places[-1] >= 3


@given(st.integers(1, 8), counts, st.integers(0, 3), st.integers(0, 2))
def test_other_prompts_take_the_place_of_an_iterations_own(number, count, rounds, iteration):
    prompts = named(number)
    own = prompts_of_iteration(prompts, iteration, count, seed=3)
    others = prompts_of_refills(prompts, own, iteration, rounds, seed=3)
    assert len(others) == rounds * count
    first = prompts_of_refills(prompts, own, iteration, 1, seed=3)
    assert others[: len(own)] == first[: len(others)]
    texts, own_texts = [prompt.text for prompt in others], {prompt.text for prompt in own}
    assert own_texts.isdisjoint(texts) or len(own_texts) == number
    num_new = min(len(texts), (number - len(own_texts)) or number)
    assert len(set(texts[:num_new])) == num_new  # none twice while there are others


def test_few_prompts_are_compared_in_full_with_an_iterations_own(monkeypatch):
    prompts = [*named(500), Prompt("3", {"n": 1})]
    own, compared, equals = prompts[:20], [], Prompt.__eq__
    expected = [prompt for prompt in prompts if prompt not in own]
    monkeypatch.setattr(Prompt, "__eq__", lambda a, b: compared.append(a) or equals(a, b))
    others = prompts_of_refills(prompts, own, 0, 25, seed=3)[: len(expected)]
    assert len(compared) <= 21 * 20
    assert sorted(map(str, others)) == sorted(map(str, expected))


def test_epochs_and_seeds_are_shuffled_differently():
    prompts = named(20)
    orders = {tuple(dealt(prompts, 5, 20)[20 * epoch : 20 * epoch + 20]) for epoch in range(5)}
    orders |= {tuple(dealt(prompts, 1, 20, seed)) for seed in range(1, 5)}
    assert len(orders) == 9
    assert tuple(prompt.text for prompt in prompts) not in orders


def test_every_prompt_may_come_first():
    firsts = Counter(
        dealt(named(4), 1, 1, seed)[0] for seed in range(400)
    )  # 100 each, standard deviation 8.7
    assert set(firsts) == {prompt.text for prompt in named(4)}
    assert max(firsts.values()) < 145


def test_equal_prompts_are_prompts_of_their_own():
    prompts = [Prompt("a", {"n": 1}), Prompt("a", {"n": 2}), Prompt("b", {"n": 3})]
    assert Counter(dealt(prompts, 3, 2)) == {"a": 4, "b": 2}
    drawn = prompts_of_iteration(prompts, 0, 3, seed=0)
    assert sorted(prompt.metadata["n"] for prompt in drawn) == [1, 2, 3]


def test_a_round_has_its_prompts():
    config = RunConfig.model_validate({"rollout": {"prompts_per_iteration": 3}})
    rounds = [round_of(config, named(10), index) for index in range(30)]
    assert rounds == [round_of(config, named(10), index) for index in range(30)]
    for index, round_ in enumerate(rounds):
        drawn = prompts_of_iteration(named(10), index, 3, seed=0)
        assert round_.index == index
        assert round_.prompts == drawn


@given(st.integers(1, 40), st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_which_prompts_are_emptied_follows_from_seed_iteration_and_place(number, iteration, seed):
    prompts = named(number)
    found = emptied(prompts, iteration, 0.4, seed=seed)
    assert [own.text for own in found] == [own.text for own in prompts], "rewards get all of them"
    assert [own.key for own in found] == ["" if p.is_emptied else p.text for p in found]
    others = emptied(named(1) * number, iteration, 0.4, seed=seed)
    assert [own.is_emptied for own in others] == [own.is_emptied for own in found]
    more = emptied([*prompts, *named(1)], iteration, 0.4, seed=seed)
    assert more[:-1] == found, "prompts that may take the place of others change nothing"


def test_as_many_prompts_are_emptied_as_asked_for():
    prompts = named(10)
    drawn = [own for i in range(1000) for own in emptied(prompts, i, 0.2, seed=3)]
    count = sum(own.is_emptied for own in drawn)
    assert abs(count - 2000) < 200  # 5 standard deviations
    assert len({tuple(own.is_emptied for own in drawn[i : i + 10]) for i in range(0, 100, 10)}) > 3
    assert emptied(prompts, 0, 0.0, seed=3) == prompts
