"""Names of the variants of formulas, as a config chooses them. Free of torch."""

from typing import Literal

TransitionName = Literal["flow_sde", "cps", "dance", "wan_sde", "longcat_sde"]
"""Stochastic samplers: rows of ``flow_sde.TRANSITIONS``."""

SolverName = Literal["euler", "dpmpp_2m"]
"""Solvers of noiseless steps: see ``dpm_solver.second_order_step``."""

KlScaling = Literal["gaussian", "flowgrpo"]
"""Scales of the divergence from the reference policy: see ``kl.scaled_kl``."""

AdvantageScale = Literal["group", "batch", "max_group", "none"]
"""What centred rewards are divided by: see ``grpo.group_advantages``."""

AdvantageMix = Literal["rewards", "advantages"]
"""What several rewards are summed as: see ``advantages.mixed_advantages``."""

AdvantageMode = Literal["all", "positive_only", "negative_only", "one_only", "binary"]
"""Which advantages count on the forward process: see ``diffusion_nft.optimality``."""

MatchingWeight = Literal["uniform", "t", "t2", "huber", "ghuber"]
"""Weightings of the flow-matching loss: see ``awm.matching_logprob``."""

OldPolicyDecay = Literal["none", "ramp", "low_ramp", "late_ramp"]
"""How far an old policy lags behind: rows of ``forward_process.DECAY_SCHEDULES``."""

WindowStrategy = Literal["progressive", "decay", "exp_decay", "random"]
"""How long MixGRPO's window stays at each place: see ``mix_grpo.mix_grpo_window``."""

Correction = Literal["recompute", "truncate", "icepop", "reject"]
"""Weights of stale pairs: see ``correction.correction_weights``."""
