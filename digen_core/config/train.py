"""The config table ``train``: how a policy version is made from scored groups.

Importing this module must not import torch.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from digen_core.strict import AtMost, Strict

_RANK: Final = AtMost(4096, "that is no low rank; lora = 'null' trains all weights")
_UPDATES: Final = AtMost(256, "what is between two of them is reduced, stepped and pushed")
_PACK: Final = AtMost(65_536, "its pairs are held in memory together")

DealtBy = Literal["groups", "samples"]


def dealt_units(dealt_by: DealtBy, num_groups: int, trained_per_group: int) -> int:
    """Return how many groups, or trained samples, each epoch deals to its updates."""
    return num_groups * (1 if dealt_by == "groups" else trained_per_group)


class LoraConfig(Strict):
    """Low-rank adapters on the transformer; the base weights stay frozen."""

    rank: Annotated[int, _RANK] = Field(32, ge=1)
    """Rank of the update."""

    alpha: float = Field(64.0, gt=0)
    """Scale: the update is alpha / rank * B A."""

    targets: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        ("to_q", "to_k", "to_v", "to_out.0"), min_length=1
    )
    """Module name suffixes that get an adapter."""

    init: Literal["gaussian", "kaiming"] = "gaussian"
    """How A is drawn; B is 0. gaussian: normal with deviation 1 / rank (FlowGRPO); kaiming: uniform
    within 1 / sqrt(columns of A), peft's own default (DanceGRPO)."""


class TrainConfig(Strict):
    """How a policy version is made from scored groups."""

    learning_rate: float = Field(3e-4, gt=0)
    """AdamW's, at the first update."""

    learning_rate_decay: Literal["none", "cosine"] = "none"
    """cosine: fall to 0 over num_iterations, so that the noise of late updates averages out."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's."""

    adam_eps: float = Field(1e-8, gt=0)
    """AdamW's."""

    weight_decay: float = Field(1e-4, ge=0)
    """AdamW's."""

    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient's norm is clipped to this before the step."""

    updates_per_iteration: Annotated[int, _UPDATES] = Field(1, ge=1)
    """Optimizer steps for the samples of an iteration, its epochs together. Ratios are to the
    policy that sampled, so the clip acts from the second step on. Only what the last one makes
    generates."""

    epochs: Annotated[int, _UPDATES] = Field(1, ge=1)
    """Times that each sample of an iteration is trained; each epoch has as many of the updates."""

    dealt_by: DealtBy = "groups"
    """What is dealt to the updates of an epoch, drawn from the seed: groups, and the first update
    begins while groups of the next one are generated; or samples of all groups (flow_grpo)."""

    pack_size: Annotated[int, _PACK] = Field(16, ge=1)
    """Pairs (one sample at one trained step) in one forward and backward."""

    lora: LoraConfig | None = LoraConfig()
    """Adapters to train; `lora = "null"` in [train] trains all weights of the transformer."""

    gradient_checkpointing: bool = False
    """Keep a block's input only and compute the block again for its gradient: less memory, about a
    third more compute, the same gradient."""

    ema_decay: float = Field(0.9, ge=0, lt=1)
    """Moving average of the weights for evaluation and saving; 0 turns it off."""

    ema_warmup: bool = True
    """Let the decay at version v be (1 + v) / (10 + v) at most (FlowGRPO); else it is ema_decay
    from the start (DanceGRPO)."""

    ema_every: int = Field(1, ge=1)
    """Updates between two steps of the average: at version v if this divides v + 1 (FlowGRPO)."""

    max_replay_error: float | None = Field(None, gt=0)
    """Largest |log-ratio| of a pair that the trained version itself sampled: there it is numerical
    noise. More ends the run. Null: 1e-5, or 1e-2 for models in half precision, or 5e-2 where
    rollout.precision is another than the model's."""

    min_gradient_cosine: float = Field(0.98, ge=-1, le=1)
    """Least cosine between the gradients of a trainer's first pack with model.cuts and without.
    Less ends the run: another model than the one that is used would be trained."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.updates_per_iteration % self.epochs:
            raise ValueError(
                f"train.updates_per_iteration is {self.updates_per_iteration}, but train.epochs is "
                f"{self.epochs}, and each epoch has as many of them; use a multiple of "
                f"{self.epochs}."
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"train.betas are {list(self.betas)}; each must be in [0, 1).")
        return self
