"""Work in parts that fit into the memory of a device, and what to change where nothing fits."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

import torch

from digen_core.config.size import Size
from digen_core.errors import UserError
from digen_core.models.out_of_memory import is_out_of_memory

T = TypeVar("T")

Activity = Literal[
    "model", "encode", "samples", "denoise", "decode", "evaluate", "train", "sum", "step", "load"
]

_HOST: Final = "DefaultCPUAllocator"  # in what torch says of a full host
_SMALLER: Final = "a smaller model.height, model.width or model.num_frames"
_HALF: Final = "model.dtype = 'bfloat16'"
_FEWER: Final = "train fewer weights (lower rank or fewer targets in [train.lora])"
_ACTIVITIES: Final[dict[Activity, tuple[str, str]]] = {
    "model": (
        "to hold the model",
        f"use {_HALF}, offload more in [model], or have a gang share it by [parallel]: 'digen size "
        "CONFIG --memory' says what each takes",
    ),
    "encode": (
        "to embed a prompt",
        f"use {_HALF}, or offload = ['text_encoders', 'vae', 'transformer'] in [model]",
    ),
    "samples": ("to encode one image", f"set model.vae_tiling = true, or use {_SMALLER}"),
    "denoise": ("to denoise one sample", f"use {_SMALLER}, or {_HALF}"),
    "decode": ("to decode one sample", f"set model.vae_tiling = true, or use {_SMALLER}"),
    "evaluate": (
        "to sample a prompt for the evaluation",
        f"use {_SMALLER}, or {_HALF}",
    ),
    "train": (
        "for the gradient of one pair",
        f"set train.gradient_checkpointing = true, or use {_SMALLER}, or {_HALF}",
    ),
    "sum": ("to add up gradients", f"{_FEWER}, or use GPUs and a host with more"),
    "step": ("for the optimizer step", f"{_FEWER}, or use a host with more"),
    "load": ("to hold a version of the weights", f"{_FEWER}, or lower schedule.max_staleness"),
}
"""What did not fit, and what to do."""


class Fitting:
    """How many samples a device takes at once, learnt from those that did not fit."""

    def __init__(self, device_name: str, whole: Collection[Activity] = ()) -> None:
        """Prepare for a device.

        Args:
            device_name: for messages.
            whole: what cannot be tried again with fewer samples, as in a gang, whose other members
                wait for what this one did not do.
        """
        self._device_name = device_name
        self._whole = whole
        self._most: dict[tuple[Activity, Size], int] = {}

    def at_most(self, activity: Activity, size: Size, number: int) -> None:
        """Have no more samples done at once than so many: where that cannot be found by trying.

        Args:
            activity: what is done.
            size: of the samples.
            number: of them.
        """
        self._most[activity, size] = number

    def in_parts(
        self, activity: Activity, size: Size, num_samples: int, work: Callable[[slice], T]
    ) -> list[T]:
        """Do something with samples, as many at once as fit.

        Args:
            activity: what is done.
            size: of the samples.
            num_samples: of them.
            work: does it with a slice of them.

        Returns:
            What ``work`` returned for each part, in order.

        Raises:
            UserError: one sample does not fit, or fewer cannot be tried.
        """
        found: list[T] = []
        first = 0
        while first < num_samples:
            most = self._most.get((activity, size), num_samples)
            part = slice(first, min(first + most, num_samples))
            try:
                found.append(work(part))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                most = part.stop - part.start
                if most == 1 or activity in self._whole:
                    raise UserError(no_memory(self._device_name, activity, size, most)) from error
            else:
                first = part.stop
                continue
            # Only now is what it had allocated free: the traceback is gone.
            self._most[activity, size] = (part.stop - part.start) // 2
            torch.cuda.empty_cache()
        return found


@contextmanager
def needing_memory(
    device_name: str, activity: Activity, size: Size, number: int = 1
) -> Iterator[None]:
    """Run the body, which cannot be done in parts; arguments are those of `no_memory`.

    Raises:
        UserError: it does not fit into memory, the device's or the host's.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not (is_out_of_memory(error) or isinstance(error, MemoryError) or _HOST in str(error)):
            raise
        raise UserError(no_memory(device_name, activity, size, number)) from error


def no_memory(device_name: str, activity: Activity, size: Size, number: int = 1) -> str:
    """Return a line that says what does not fit where, and what to do.

    Args:
        device_name: of the device.
        activity: what does not fit.
        size: of the samples.
        number: of the samples or pairs that were tried together.
    """
    height, width, frames = size
    shape = f"{height} x {width} pixels" + (f" and {frames} frames" if frames > 1 else "")
    what, advice = _ACTIVITIES[activity]
    if number > 1:
        what += f", here for {number} together"
        sizes = "rollout.fragment_size, rollout.batch_size or train.pack_size"
        advice = f"use a smaller {sizes}; or {advice}"
    return f"{device_name} has not enough memory {what} (samples of {shape}): {advice}"
