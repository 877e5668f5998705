"""Gradients with coded cuts are compared with those without."""

import pytest
import torch

from digen_core.algorithms.diffusion_nft import DiffusionNft
from digen_core.errors import UserError
from digen_core.gang.members import ALONE
from digen_core.training.coded import agreement_of, as_if_sampled_now, check_agreement
from digen_core.training.gradient import Agreement, PackMetrics, add_metrics
from digen_core.training.gradient_sum import pack_gradient
from digen_core.training.pairs import CleanPairs
from support.gang_cases import Case, pairs_of, trained_policy


def agreement(folder: str, *cuts, lora=True, clean=False) -> Agreement:
    config = Case("flux", lora=lora, cuts=cuts).config(folder)
    policy = trained_policy(config)
    pairs = pairs_of(policy, config, 5)
    pairs = as_if_sampled_now(policy, pairs, config, ALONE)  # as a run's first pairs are
    if clean:
        config = config.model_copy(update={"algorithm": DiffusionNft()})
        pairs = CleanPairs(pairs.x, pairs.x_next, pairs.advantage, pairs.sigma, pairs.condition)
    found = pack_gradient(policy, pairs, config, ALONE)
    return agreement_of(policy, pairs, found, config, ALONE)


@pytest.mark.parametrize(
    ("cut", "least", "most"),
    [
        ({"forward": "none", "backward": "none"}, 1 - 1e-12, 1 + 1e-12),
        ({"forward": "none", "backward": "int8"}, 0.999, 1 - 1e-9),
        ({"forward": "int8", "backward": "int8"}, 0.99, 1 - 1e-9),
        ({"forward": "none", "backward": "int4"}, 0.98, 0.9999),
        ({"forward": "none", "backward": "topk", "topk_ratio": 10}, 0.3, 0.97),
    ],
)
def test_the_milder_the_codec_the_nearer_the_gradient(tiny_families, cut, least, most):
    """Pairs are of ratio 1 in both, or clipping would tell them apart."""
    found = agreement(tiny_families["flux"], {"block": 2} | cut).cosine
    assert least <= found <= most


@pytest.mark.parametrize("lora", [True, False])
def test_clean_latents_are_compared_too(tiny_families, lora):
    found = agreement(tiny_families["flux"], {"block": 2}, lora=lora, clean=True)
    assert 0.99 < found.cosine < 1 - 1e-9


def test_what_is_compared_adds_up_by_hand():
    """Gradients (3, 4) and (4, 3), of which each part is another member's."""
    parts = [Agreement(12, 9, 16), Agreement(12, 16, 9)]
    assert sum(parts, Agreement()).cosine == pytest.approx(24 / 25)
    assert Agreement().cosine is None
    assert Agreement(0, 0, 25).cosine == Agreement(0, 25, 0).cosine == 0
    whole = add_metrics(*(PackMetrics(agreement=part) for part in parts))
    assert whole.agreement == Agreement(24, 25, 25)


def test_another_gradient_ends_the_run_in_one_line(tiny_families):
    config = Case("flux", cuts=({"block": 2},)).config(tiny_families["flux"])
    check_agreement([PackMetrics(agreement=Agreement(99, 100, 100))], config, ALONE)
    metrics = [PackMetrics(agreement=Agreement(97, 100, 100))]
    with pytest.raises(UserError, match=r"has a cosine of 0\.9700 .*, less than .* \(0\.98\); use"):
        check_agreement(metrics, config, ALONE)
    lower = config.train.model_copy(update={"min_gradient_cosine": 0.5})
    check_agreement(metrics, config.model_copy(update={"train": lower}), ALONE)


def test_nan_agrees_with_nothing(tiny_families):
    config = Case("flux", cuts=({"block": 2},)).config(tiny_families["flux"])
    with pytest.raises(UserError, match="cosine of nan"):
        check_agreement([PackMetrics(agreement=Agreement(*3 * [torch.nan]))], config, ALONE)
