"""Utilisation metrics: the model's arithmetic in an iteration against what its devices could do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from digen_core.control.protocol import Device
from digen_core.records import Span
from digen_core.trace.peaks import peak_of, processor_in
from digen_core.trace.windows import Window

Counted = Literal["denoise", "score", "train"]

_NAMED: Final[Mapping[Counted, str]] = {"denoise": "mfu_denoise", "train": "mfu_train"}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """FLOPs of a model's work on one item of mean cost; a multiplication and an addition are two.

    What gradient checkpointing computes again counts as work, as in ``digen bench utilization``.
    """

    step: float  # a denoising step of a sample, guidance included
    pair: float  # forward and backward of a pair
    decode: float  # the VAE's, of a sample

    def of(self, span: Span) -> float:
        """Return the FLOPs of a task, 0 of one that is not counted."""
        items = span.num_items * span.cost
        match span.kind:
            case "denoise":
                return (span.end_step - span.first_step) * items * self.step
            case "score":
                return items * self.decode
            case "train":
                return items * self.pair
            case _:
                return 0.0


def peaks_of(devices: Iterable[Device]) -> dict[str, float] | None:
    """Return each device's peak, FLOP a second, by name; None if one's is not known."""
    found = {own.name: 1e12 * own.size * peak_of(processor_in(own.kind)) for own in devices}
    return found if found and all(found.values()) else None


def mfu_metrics(
    arithmetic: Arithmetic, spans: Sequence[Span], devices: Sequence[Device], window: Window
) -> dict[str, float]:
    """Return the shares of the devices' peaks that an iteration reached; {} without peaks.

    With what is computed again they are what PaLM (arXiv:2204.02311, appendix B) calls hardware
    FLOP utilisation.

    - ``throughput/mfu``: FLOPs of the iteration / what all devices could compute in its window.
    - ``throughput/mfu_denoise``, ``throughput/mfu_train``: the same, of those tasks alone, while
      they ran: what ``mfu_denoise`` and ``mfu_train`` of a cluster file mean.

    Args:
        arithmetic: of the run's model.
        spans: of the iteration.
        devices: of the run.
        window: of the iteration.
    """
    peaks = peaks_of(devices)
    counted = [span for span in spans if peaks and span.device in peaks]
    if not peaks or not counted:
        return {}
    possible = window.seconds * sum(peaks.values())
    metrics = {"throughput/mfu": sum(map(arithmetic.of, counted)) / possible}
    for kind, name in _NAMED.items():
        own = [span for span in counted if span.kind == kind]
        could = sum((span.ended - span.started) * peaks[span.device] for span in own)
        if could > 0:
            metrics[f"throughput/{name}"] = sum(map(arithmetic.of, own)) / could
    return metrics
