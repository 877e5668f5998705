"""The deal: equal shares, each sample once an epoch, and from the seed alone."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from digen_core.config.run import RunConfig
from digen_core.control.schedule import WHOLE, Deal
from digen_core.training.deal import deal_of_iteration
from support.runs import merged


def config_of(groups=4, size=6, best_of=None, seed=0, **train):
    changes = {
        "seed": seed,
        "rollout.prompts_per_iteration": groups,
        "rollout.group_size": size,
        **({"algorithm.best_of": best_of} if best_of else {}),
        **{f"train.{key}": value for key, value in train.items()},
    }
    return RunConfig.model_validate(merged({}, changes))


def test_groups_by_hand():
    """Groups 2 and 0 go to update 0, groups 3 and 1 to update 1; then another order."""
    deal = Deal.of([[2, 0, 3, 1], [1, 2, 3, 0]], num_updates=4, num_groups=4, trained_per_group=2)
    assert deal.updates == (((0, 3),) * 2, ((1, 2),) * 2, ((0, 2),) * 2, ((1, 3),) * 2)
    assert deal.epochs == 2
    assert [deal.epoch_of(update) for update in range(4)] == [0, 0, 1, 1]
    assert [[deal.trains(u, g) for g in range(4)] for u in (0, 3)] == [
        [True, False, True, False],
        [True, False, False, True],
    ]
    assert deal.updates_of(6, 1) == deal.updates_of(2, 1)  # it took the place of group 2


def test_samples_by_hand():
    """Samples count group after group: 3 is the second sample of group 1."""
    deal = Deal.of([[3, 0, 2, 1]], num_updates=2, num_groups=2, trained_per_group=2)
    assert deal.updates == (((0,), (1,)), ((1,), (0,)))
    assert all(deal.trains(update, group) for update in (0, 1) for group in (0, 1))


def test_one_update_trains_everything():
    assert deal_of_iteration(config_of(), 3) == WHOLE == Deal()
    assert WHOLE.epoch_of(0) == 0
    assert WHOLE.updates_of(5, 2) == (0,)
    assert WHOLE.trains(0, 5)
    assert WHOLE.epochs == 1


@given(
    st.sampled_from(["groups", "samples"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([None, 2, 4]),
    st.integers(0, 5),
)
def test_each_sample_is_trained_once_an_epoch_in_equal_shares(
    by, in_epoch, epochs, per_update, best_of, iteration
):
    updates, groups = in_epoch * epochs, in_epoch * per_update
    config = config_of(
        groups, 6, best_of, updates_per_iteration=updates, epochs=epochs, dealt_by=by
    )
    deal = deal_of_iteration(config, iteration)
    if updates == 1:
        assert deal == WHOLE
        return
    trained = config.trained_per_group
    assert [len(samples) for samples in deal.updates] == [trained] * groups
    flat = [own for samples in deal.updates for own in samples]
    for own in flat:
        assert [update // in_epoch for update in own] == list(range(epochs))
    shares = Counter(update for own in flat for update in own)
    assert set(shares.values()) == {groups * trained // in_epoch}
    assert config.pairs_per_update == shares[0] * config.num_trained_steps
    if by == "groups":
        assert all(len(set(samples)) == 1 for samples in deal.updates)


def test_it_depends_on_seed_iteration_and_epoch_alone():
    changes = {"updates_per_iteration": 8, "epochs": 2, "dealt_by": "samples"}
    config = config_of(8, 4, **changes)
    deal = deal_of_iteration(config, 0)
    cut = config_of(8, 4, pack_size=3, **changes)
    assert deal == deal_of_iteration(cut, 0)
    others = [
        deal_of_iteration(config, 1),
        deal_of_iteration(config_of(8, 4, seed=1, **changes), 0),
    ]
    assert all(other != deal for other in others)
    first, second = (
        [own[epoch] - 4 * epoch for samples in deal.updates for own in samples] for epoch in (0, 1)
    )
    assert first != second
