"""Rows of a batch: whichever are taken together, each is the sample that it is alone."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from digen_core.rollout.rows import GroupRows, Rows
from digen_core.seeding import FORWARD_NOISE, NOISE, noise_of
from digen_core.transport.origin import Origin

ROWS = Rows(
    (
        GroupRows.of((2, 0), range(4, 8)),
        GroupRows.of((2, 5), range(2), Origin((2, 1), (7, 3))),
        GroupRows.of((2, 0), range(8, 9)),
    )
)


def test_they_name_their_samples():
    expected = [((2, 0), 4), ((2, 0), 5), ((2, 0), 6), ((2, 0), 7), ((2, 5), 0), ((2, 5), 1)]
    assert [*ROWS] == [*expected, ((2, 0), 8)]
    assert len(ROWS) == 7
    found = ROWS.named({6: "latent", 5: "KL", 1: "latent"})
    assert found == {(2, 0): {5: "latent", 8: "latent"}, (2, 5): {1: "KL"}}


@given(st.integers(0, 7), st.integers(0, 7))
def test_a_part_is_of_the_same_samples_with_the_same_noise(first, last):
    first, last = sorted((first, last))
    part = ROWS.part(slice(first, last))
    assert [*part] == [*ROWS][first:last]
    assert all(len(own) for own in part.parts)
    if part.parts:
        noise = {"seed": 3, "purpose": NOISE, "step": 1}
        assert torch.equal(part.noise((2, 3), **noise), ROWS.noise((2, 3), **noise)[first:last])


def test_noise_of_denoising_is_that_of_the_origin_and_no_other():
    noise = {"seed": 3, "step": 2}
    found = ROWS.noise((4,), purpose=NOISE, **noise)
    candidate = noise_of((4,), purpose=NOISE, group=(2, 1), samples=(7, 3), **noise)
    assert torch.equal(found[4:6], candidate)
    found = ROWS.noise((4,), purpose=FORWARD_NOISE, **noise)
    own = noise_of((4,), purpose=FORWARD_NOISE, group=(2, 5), samples=range(2), **noise)
    assert torch.equal(found[4:6], own)


def test_shared_noise_is_a_groups():
    found = ROWS.noise((4,), seed=3, purpose=FORWARD_NOISE, step=2, shared=True)
    assert torch.equal(found[0], found[3])
    assert torch.equal(found[0], found[6])
    assert not torch.equal(found[0], found[4])


def test_conditions_have_a_row_for_each_in_a_plain_layout():
    of_groups = {
        (2, 0): {"embeds": torch.arange(6.0).reshape(1, 3, 2), "pooled": torch.ones(1, 2)},
        (2, 5): {"embeds": -torch.arange(6.0).reshape(1, 3, 2), "pooled": torch.zeros(1, 2)},
    }
    found = ROWS.conditions(of_groups)
    signs = torch.tensor([1.0, 1, 1, 1, -1, -1, 1])
    expected = signs[:, None, None] * torch.arange(6.0).reshape(1, 3, 2)
    assert torch.equal(found["embeds"], expected)
    assert found["pooled"].sum(1).tolist() == [2, 2, 2, 2, 0, 0, 2]
    assert all(value.is_contiguous() for value in found.values())


def test_of_one_group_they_are_its_own():
    assert Rows.of((0, 1), range(2)).parts[0].origin == Origin((0, 1), range(2))
    with pytest.raises(KeyError):
        ROWS.conditions({(2, 0): {"embeds": torch.ones(1, 2)}})
