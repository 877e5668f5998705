"""The config key ``model.cuts``: where the streams between blocks are coded, and how.

Importing this module must not import torch.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from digen_core.strict import AtMost, Strict

ForwardCodec = Literal["none", "bf16", "int8", "int4"]
"""A codec of streams; not Top-K: what it leaves out a pre-trained model has never been without."""

BackwardCodec = Literal["none", "bf16", "int8", "int4", "topk"]
"""A codec of the gradients of streams."""

_RATIO: Final = AtMost(1000, "less than one number in a thousand would be left")


class CutConfig(Strict):
    """A cut at which streams are coded, on every device, in rollout, training and evaluation."""

    block: int = Field(ge=1)
    """Number of the block before which the streams are coded, in the order of the forward pass; the
    first block is 0."""

    forward: ForwardCodec = "int8"
    """Codec of the streams: bf16 rounds to bfloat16; int8 has a scale for each token, int4 for each
    32 channels."""

    backward: BackwardCodec = "int8"
    """Codec of their gradients; topk keeps the largest numbers of each sample."""

    topk_ratio: Annotated[float, _RATIO] = Field(10.0, ge=2)
    """Bytes of a gradient in bfloat16 over those that topk sends."""
