"""torch.compile for the blocks of a transformer.

Blocks, not the whole: they are alike, so one is compiled for all, in seconds in place of minutes.
Rollouts and training compile the same code, once without and once with gradients, and once more for
each adapter that may be active and when a shape first differs (it is dynamic from then on).
"""

from functools import cache
from time import monotonic
from typing import Any, Final

import torch

from digen_core.config.model import ModelConfig
from digen_core.models.compiler import require_compiler
from digen_core.models.policy import Policy

MAX_RECOMPILES: Final = 64
"""Variants of a block before torch gives up and runs it uncompiled; its own limit is 8."""

SCALAR: Final = {"cpp.simdlen": 1}
"""Options of loops without vector instructions. With them torch 2.13 computes wrong gradients on
CPUs, in float64 too: those of a HunyuanVideo whose weights are all trained were off by 0.5%."""

AS_UNCOMPILED: Final = {"emulate_precision_casts": True}
"""Options of kernels that round after each operation, as uncompiled ones do. Fused operations round
once, and which are fused depends on whether there are gradients, and on the batch: log-probs of
samples in bfloat16 were off by some 1e-3 from those of their replay."""

_BLOCKS: Final = {
    "SD3Transformer2DModel": ("JointTransformerBlock",),
    "SanaTransformer2DModel": ("SanaTransformerBlock",),
}
"""Classes of blocks where diffusers names none."""


def compile_blocks(policy: Policy, config: ModelConfig) -> None:
    """Compile the blocks of a policy's transformer, if the config says so.

    Args:
        policy: with what is trained attached.
        config: of the model.

    Raises:
        ConfigError: there is no compiler on this machine.
    """
    if not config.compile:
        return
    require_compiler(policy.device.type)
    from torch._inductor import list_mode_options

    options = {} if config.compile is True else list_mode_options(config.compile)
    if policy.device.type == "cpu":
        options = options | SCALAR
    if policy.dtype in (torch.bfloat16, torch.float16):
        options = options | AS_UNCOMPILED
    for transformer in policy.transformers:
        for block in blocks_of(transformer):
            # not torch._dynamo.config: what is set there holds in the task that sets it only
            block.compile(options=options or None, recompile_limit=MAX_RECOMPILES)


def blocks_of(transformer: Any) -> list[torch.nn.Module]:
    """Return the blocks that a transformer repeats, a block before those inside it."""
    names = _BLOCKS.get(type(transformer).__name__) or transformer._repeated_blocks
    return [module for module in transformer.modules() if type(module).__name__ in names]


class CompileMeter:
    """Seconds that torch.compile took in this process, in whichever thread."""

    def __init__(self) -> None:
        from torch._dynamo.callback import callback_handler

        self._seconds, self._since = 0.0, 0.0
        # torch calls one at a time, and those of nested compilations once
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def read(self) -> float:
        """Return the seconds since the last reading."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _start(self, _about: object) -> None:
        self._since = monotonic()

    def _end(self, _about: object) -> None:
        self._seconds += monotonic() - self._since


@cache
def compile_meter() -> CompileMeter:
    """Return the meter of this process."""
    return CompileMeter()
