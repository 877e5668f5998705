"""The config table ``train``: how a policy version is made from scored groups.

Importing this module must not import torch.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from digen_core.strict import AtMost, Strict

_RANK: Final = AtMost(4096, "that is no low rank; lora = 'null' trains all weights")
_PACK: Final = AtMost(65_536, "its pairs are held in memory together")


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
    noise. More ends the run. Null: 1e-5, or 1e-2 for models in half precision."""

    min_gradient_cosine: float = Field(0.98, ge=-1, le=1)
    """Least cosine between the gradients of a trainer's first pack with model.cuts and without.
    Less ends the run: another model than the one that is used would be trained."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"train.betas are {list(self.betas)}; each must be in [0, 1).")
        return self
