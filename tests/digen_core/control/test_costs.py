"""Costs of work: what changes where another device asks the reference policy, by hand and back."""

import pytest

from digen_core.control.costs import Asks, Costs, DeviceCosts, Linear

HALF = Asks(training=1.0, generation=1.5)  # half of the steps are trained
KIND = DeviceCosts(
    step=Linear(fixed=0.2, per_item=0.1),
    decode=Linear(per_item=7.0),
    pack=Linear(fixed=0.5, per_item=0.35),
)


def test_a_reference_policy_that_is_asked_in_generation_by_hand():
    costs = Costs(kinds={"h": KIND}, push=3.0)
    moved = costs.asking("generation", HALF)
    step, pack = moved.kinds["h"].step, moved.kinds["h"].pack
    assert (step.fixed, step.per_item) == pytest.approx((0.3, 0.15))
    assert (pack.fixed, pack.per_item) == pytest.approx((0.3, 0.25))
    assert moved.kinds["h"].decode == KIND.decode
    assert (moved.push, moved.reference) == (3.0, "generation")
    back = moved.asking("training", HALF)
    assert back.reference == "training"
    for operation in ("step", "pack"):
        line, before = (getattr(own.kinds["h"], operation) for own in (back, costs))
        assert (line.fixed, line.per_item) == pytest.approx((before.fixed, before.per_item))


def test_who_asks_already_changes_nothing():
    costs = Costs(kinds={"h": KIND})
    assert costs.asking("training", HALF) == costs


def test_no_cost_is_negative_and_what_nothing_tells_stays():
    cheap = KIND.model_copy(update={"pack": Linear(fixed=0.5, per_item=0.01)})
    moved = Costs(kinds={"h": cheap}).asking("generation", HALF)
    assert moved.kinds["h"].pack == Linear(fixed=0.3, per_item=0.0)
    free = KIND.model_copy(update={"pack": Linear(per_item=0.01)})  # less than a velocity
    moved = Costs(kinds={"h": free}).asking("generation", HALF)
    assert moved.kinds["h"].pack == Linear(per_item=0.005)
    from_files = Asks(training=0.0, generation=0.5)
    assert Costs(kinds={"h": KIND}).asking("generation", from_files).kinds == {"h": KIND}
