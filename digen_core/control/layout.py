"""Layouts: which overlaps a schedule uses. One option, `schedule.layout`, names one of these."""

from dataclasses import dataclass
from typing import Literal, get_args

LayoutName = Literal[
    "colocated", "colocated-strong", "disaggregated", "gap", "tsp", "tag", "tcss", "elastic"
]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a layout does. Each published mechanism adds one switch to the one before it."""

    name: LayoutName
    colocated: bool = False  # every device generates, then every device trains
    streamed: bool = True  # a fragment is scored as soon as it is generated
    pipelined: bool = False  # GAP: a group is trained as soon as it has advantages
    packed: bool = False  # TSP: packs of pairs of any steps, dealt over all trainers
    trainers_help: bool = False  # TAG: trainers without pairs generate
    rollouts_train: bool = False  # its mirror image: rollout devices without fragments train
    stale: bool = False  # TCSS: the next iteration begins on the version before

    @property
    def helpers_leave(self) -> bool:
        """Whether trainers that help go back to their pairs before all is generated."""
        return self.trainers_help and not self.rollouts_train


LAYOUTS: dict[LayoutName, Layout] = {
    layout.name: layout
    for layout in (
        Layout("colocated", colocated=True, streamed=False),
        Layout("colocated-strong", colocated=True, packed=True),
        Layout("disaggregated"),
        Layout("gap", pipelined=True),
        Layout("tsp", pipelined=True, packed=True),
        Layout("tag", pipelined=True, packed=True, trainers_help=True),
        Layout(
            "tcss",
            pipelined=True,
            packed=True,
            trainers_help=True,
            rollouts_train=True,
            stale=True,
        ),
        Layout("elastic", pipelined=True, packed=True, trainers_help=True, rollouts_train=True),
    )
}
assert tuple(LAYOUTS) == get_args(LayoutName)
