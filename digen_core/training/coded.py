"""What coded cuts do to a gradient: it is compared with the one of the same pairs without them."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.gang.members import Gang
from digen_core.gang.sharding import held
from digen_core.maths.flow_sde import LOGPROBS
from digen_core.models.policy import Policy
from digen_core.training.gradient import Agreement, PackMetrics, transition_of
from digen_core.training.gradient_sum import PackGradient, pack_gradient
from digen_core.training.pairs import CleanPairs, Pairs, rows_of


def agreement_of(
    policy: Policy,
    pairs: Pairs | CleanPairs,
    coded: PackGradient,
    config: RunConfig,
    gang: Gang,
) -> Agreement:
    """Return how alike a pack's gradient is to what it would be if no cut were coded.

    Of a gang it is of this member's part of both, and what members have adds up. What
    generated is taken to be the trained version, as it is for a run's first packs.

    Args:
        policy: with the weights to train.
        pairs: of the pack, those of all members, on any device.
        coded: the gradient.
        config: of the run.
        gang: whose member this process is.
    """
    pairs = replace(pairs, start_velocity=None, reference_velocity=None)
    with policy.cuts.uncoded():
        if isinstance(pairs, Pairs):
            pairs = as_if_sampled_now(policy, pairs, config, gang)
        uncoded = pack_gradient(policy, pairs, config, gang).gradient
    total = Agreement()
    for name, value in coded.gradient.items():
        own, other = held(value).double(), held(uncoded[name]).double()
        found = ((own * other).sum(), (own * own).sum(), (other * other).sum())
        total += Agreement(*map(float, found))
    return total


def check_agreement(metrics: Iterable[PackMetrics], config: RunConfig, gang: Gang) -> None:
    """Check that coded cuts leave the gradient of a pack what it is (collective).

    Args:
        metrics: of this member's parts of it.
        config: of the run.
        gang: whose member this process is.

    Raises:
        UserError: they do not; on all members.
    """
    own = sum((part.agreement for part in metrics), Agreement())
    cosine, least = sum(gang.everyone(own), Agreement()).cosine, config.train.min_gradient_cosine
    if cosine is not None and not cosine >= least:
        raise UserError(
            f"with model.cuts the gradient of the first pack has a cosine of {cosine:.4f} to the "
            f"one without, less than train.min_gradient_cosine ({least:g}); use codecs that change "
            "less, as int8, or a smaller topk_ratio, or lower the bound"
        )


@torch.no_grad()
def as_if_sampled_now(policy: Policy, pairs: Pairs, config: RunConfig, gang: Gang) -> Pairs:
    """Return pairs of ratio 1, as if the policy as it is now had sampled them.

    Without coded cuts it is another function than with them, and pairs would be clipped. Of other
    members' pairs nobody asks here.
    """
    rows = gang.computed(len(pairs.advantage))
    own = rows_of(pairs, rows, policy.device)
    assert isinstance(own, Pairs)
    own = replace(own, condition=policy.without_padding(own.condition))
    logprob = LOGPROBS[config.rollout.transition](own.x_next, transition_of(policy, own, config))
    behaviour = pairs.behaviour_logprob.clone()
    behaviour[rows] = logprob.to(behaviour)
    return replace(pairs, behaviour_logprob=behaviour)
