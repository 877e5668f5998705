"""Kinds of spans: what each is for, and how it is drawn. Every other list of kinds follows."""

from dataclasses import dataclass
from typing import Final, Literal

from digen_core.records import SpanKind

Stage = Literal["generate", "score", "train", "version", "switch"]


@dataclass(frozen=True, slots=True)
class KindFacts:
    """What one kind of work is."""

    stage: Stage
    colour: str  # of Okabe and Ito (2008), which readers with any colour vision tell apart, or dark
    meaning: str
    readies: bool = False  # makes a device ready for work, and is not work


SPAN_KINDS: Final[dict[SpanKind, KindFacts]] = {
    "encode": KindFacts("generate", "#56B4E9", "embeds prompts"),
    "denoise": KindFacts("generate", "#0072B2", "takes a batch of fragments some steps further"),
    "samples": KindFacts("generate", "#004C73", "encodes the images that are a fragment's samples"),
    "score": KindFacts(
        "score", "#009E73", "decodes a fragment and calls the rewards, or scores a group"
    ),
    "train": KindFacts("train", "#D55E00", "adds a pack's gradient to the device's sum"),
    "reduce": KindFacts("train", "#E69F00", "adds up devices' sums, those of another site there"),
    "step": KindFacts("version", "#000000", "makes the next version"),
    "copy": KindFacts("version", "#F0E442", "has the train state on a second trainer, too"),
    "publish": KindFacts("version", "#7F7F7F", "takes out of the state what a push moves"),
    "push": KindFacts("version", "#CC79A7", "loads a version on a device", readies=True),
    "switch": KindFacts("switch", "#DED3EC", "changes a device's role", readies=True),
}

READYING: Final = tuple(kind for kind, facts in SPAN_KINDS.items() if facts.readies)
TRAINING: Final = tuple(
    kind
    for kind, facts in SPAN_KINDS.items()
    if facts.stage in ("train", "version") and not facts.readies
)
"""Kinds of training, which wait for the pairs of their iteration."""
