"""FlowGRPO (arXiv:2505.05470): a clipped surrogate on the ratio of every trained transition."""

from typing import Literal

from digen_core.algorithms.policy_gradient import FirstSteps


class FlowGrpo(FirstSteps):
    """FlowGRPO: a clipped surrogate on the ratio of every trained transition."""

    type: Literal["flow_grpo"] = "flow_grpo"
