"""Padded text: left out where no row attends to it, with the same velocities."""

import pytest
import torch

from digen_core.config.families import FAMILIES
from digen_core.gang.members import Gang
from digen_core.models.trainable import make_trainable
from support.families import load_tiny

pytestmark = pytest.mark.slow

MASKED = ("qwen_image", "qwen_image21", "z_image", "hunyuan_video", "hunyuan_video15")
DEALT_BY_PIECES = [name for name in MASKED if not FAMILIES[name].deals_any_number]
SHORT, LONG = "a red circle", "a blue square to the left of a large green triangle"


def lengths_of(condition) -> list[int]:
    return condition["mask"].sum(dim=1).tolist()


def predicted(policy, condition):
    generator = torch.Generator().manual_seed(0)
    rows = len(condition["prompt_embeds"])
    x = torch.randn(rows, *policy.latent_shape, generator=generator, dtype=torch.float64)
    return policy.velocity(x, torch.full((rows,), 0.7), condition)


@pytest.fixture(params=MASKED)
def family(request):
    return request.param


@pytest.fixture
def policy(tiny_families, family):
    return load_tiny(
        tiny_families[family], family, "float64", guidance_scale=0.0, max_sequence_length=80
    )


def test_one_prompt_has_neither_padding_nor_a_mask(policy):
    condition = policy.encode([SHORT, SHORT])
    (length, _) = lengths_of(condition)
    assert length < condition["prompt_embeds"].shape[1]
    found = policy.without_padding(condition)
    masks = {name for name in condition if name.endswith("mask")}
    assert not masks & found.keys()
    assert found["prompt_embeds"].shape[1] == length
    assert found.keys() | masks == condition.keys()


def test_of_several_prompts_the_longest_keeps_its_tokens(policy):
    condition = policy.encode([SHORT, LONG])
    found = policy.without_padding(condition)
    assert lengths_of(found) == lengths_of(condition)
    assert found["prompt_embeds"].shape[1] == found["mask"].shape[1] == max(lengths_of(condition))


@pytest.mark.parametrize("prompts", [[SHORT, SHORT], [SHORT, LONG]])
def test_velocities_are_the_same(policy, prompts):
    condition = policy.encode(prompts)
    with torch.no_grad():
        whole = predicted(policy, condition)
        found = predicted(policy, policy.without_padding(condition))
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["qwen_image", "qwen_image21", "z_image", "hunyuan_video15"])
def test_both_halves_of_guidance_keep_one_length(tiny_families, family):
    policy = load_tiny(tiny_families[family], family, "float64", max_sequence_length=80)
    condition = policy.encode([SHORT])
    found = policy.without_padding(condition)
    assert found["prompt_embeds"].shape == found["negative_prompt_embeds"].shape
    assert found["prompt_embeds"].shape[1] < condition["prompt_embeds"].shape[1]
    with torch.no_grad():
        torch.testing.assert_close(
            predicted(policy, found), predicted(policy, condition), rtol=0, atol=1e-12
        )


def test_a_mask_with_holes_stays(policy):
    condition = policy.encode([LONG])
    condition["mask"][0, 1] = 0
    assert "mask" in policy.without_padding(condition)


def test_nothing_but_padding_keeps_a_token(policy):
    condition = policy.encode([SHORT])
    condition["mask"].zero_()
    found = policy.without_padding(condition)
    assert found["prompt_embeds"].shape[1] == 1
    assert found["mask"].tolist() == [[0]]


@pytest.mark.parametrize("family", ["flux", "flux2", "sd3", "wan", "ltx2"])
def test_families_that_attend_to_padding_keep_it(tiny_families, family):
    policy = load_tiny(tiny_families[family], family)
    condition = policy.encode([SHORT])
    assert policy.without_padding(condition) is condition


def attention_masks(monkeypatch) -> list:
    """Note the mask of each attention that is computed."""
    from torch.nn import functional

    seen, attend = [], functional.scaled_dot_product_attention

    def noting(*arguments, attn_mask=None, **settings):
        seen.append(attn_mask)
        return attend(*arguments, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noting)
    return seen


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_attention_of_a_block_has_a_mask_where_nothing_is_padded(
    policy, family, checkpointing, monkeypatch
):
    """Not when a block is computed again for its gradient either."""
    make_trainable(policy, None, gradient_checkpointing=checkpointing)
    blocks = [
        block
        for name, block in policy.transformer.named_modules()
        if name.rpartition(".")[0] in FAMILIES[family].blocks
    ]
    assert blocks
    whole, padded = (
        policy.without_padding(policy.encode(prompts))
        for prompts in ([SHORT, SHORT], [SHORT, LONG])
    )
    seen = attention_masks(monkeypatch)
    outside = 0
    if family.startswith("hunyuan_video"):  # the text's own refiner, whose mask is the text's
        outside = len(policy.transformer.context_embedder.token_refiner.refiner_blocks)
    times = 2 if checkpointing else 1
    predicted(policy, whole).sum().backward()
    assert len([mask for mask in seen if mask is None]) >= times * len(blocks)
    assert len([mask for mask in seen if mask is not None]) <= times * outside
    seen.clear()
    predicted(policy, padded).sum().backward()
    unmasked = {  # that of the image alone, and that of texts, which see what is before them
        "z_image": len(getattr(policy.transformer, "noise_refiner", ())),
        "qwen_image21": len(blocks),
    }.get(family, 0)
    assert len([mask for mask in seen if mask is None]) == times * unmasked
    assert len(seen) >= times * len(blocks)


@pytest.mark.parametrize("family", DEALT_BY_PIECES)
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_the_tokens_of_a_share_can_be_dealt_evenly(policy, degree):
    policy.gang = Gang(0, degree, degree)
    found = policy.without_padding(policy.encode([SHORT, LONG]))
    longest = max(lengths_of(found))
    assert found["prompt_embeds"].shape[1] == longest + -longest % degree
    assert found["mask"].shape == found["prompt_embeds"].shape[:2]


def test_no_padding_stays_where_any_number_is_dealt(tiny_families):
    policy = load_tiny(tiny_families["qwen_image21"], "qwen_image21", max_sequence_length=80)
    policy.gang = Gang(0, 4, 4)
    found = policy.without_padding(policy.encode([SHORT, LONG]))
    longest = max(lengths_of(found))
    assert longest % 4
    assert found["prompt_embeds"].shape[1] == longest


@pytest.mark.parametrize("family", DEALT_BY_PIECES)
def test_what_stays_of_the_padding_is_masked(policy):
    condition = policy.encode([SHORT])
    (length,) = lengths_of(condition)
    policy.gang = Gang(0, length, length)
    assert "mask" not in policy.without_padding(condition)
    policy.gang = Gang(0, length - 1, length - 1)
    assert lengths_of(policy.without_padding(condition)) == [length]
