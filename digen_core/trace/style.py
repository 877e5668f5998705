"""Colours and hatches of work and idleness in pictures.

Work has the strong colours of Okabe and Ito (2008), idleness pale ones with a hatch of its own, so
that both can be told apart by readers with any colour vision, and in print.
"""

from dataclasses import dataclass
from typing import Final

from digen_core.trace.gaps import Cause
from digen_core.trace.kinds import SPAN_KINDS

KIND_COLOURS: Final = {
    kind: facts.colour for kind, facts in SPAN_KINDS.items() if facts.stage != "switch"
}
"""Of kinds that are drawn as work; a switch is idleness."""
BUSY_COLOUR: Final = "#4D4D4D"


@dataclass(frozen=True, slots=True)
class IdleStyle:
    """How a cause of idleness is drawn, and how it is explained."""

    colour: str
    hatch: str
    meaning: str


IDLE_STYLES: Final[dict[Cause, IdleStyle]] = {
    "fill": IdleStyle("#D6E9F8", "//", "its first inputs are being made"),
    "starvation": IdleStyle("#FBDCC0", "\\\\", "between packs, no pairs"),
    "reward": IdleStyle("#CBEBDD", "..", "a score is awaited"),
    "tail": IdleStyle("#E4E4E4", "--", "nothing left, others work"),
    "push": IdleStyle("#F4DCEA", "||", "a version is made or loaded"),
    "switch": IdleStyle("#DED3EC", "++", "changes its role"),
    "orchestration": IdleStyle("#FFF3A8", "xx", "ready, but not started"),
}
