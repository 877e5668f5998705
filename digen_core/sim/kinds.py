"""Kinds of devices of a scenario, where they are not equal."""

from typing import Annotated, Final

from pydantic import Field

from digen_core.config.parallel import MEMBERS
from digen_core.control.costs import DeviceCosts, Linear
from digen_core.strict import AtMost, Strict

MANY: Final = AtMost(65_536, "each is simulated by itself")

Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
"""Relative to another one; with other numbers what takes the least time is not found."""


class DeviceKind(Strict):
    """Devices that take less time, or more, than the scenario's constants say."""

    count: Annotated[int, MANY] = Field(ge=1)
    """How many there are."""

    gang: Annotated[int, MEMBERS] = Field(1, ge=1)
    """Workers of each, which work in step: emulated runs have a process for each of them."""

    hosts: Annotated[int, AtMost(250, "each is a loopback address of its own")] = Field(1, ge=1)
    """Hosts that hold them, each an equal share, where they are gangs; emulated on Linux."""

    generation: Factor = 1.0
    """Time of a denoising step, encoding and decoding (d0, d1, vae), relative to the scenario's."""

    pack: Factor = 1.0
    """Time of the fixed part of a pack (a), relative to the scenario's."""

    pair: Factor = 1.0
    """Time of each pair of a pack (c), relative to the scenario's."""

    unforeseen: Factor = 1.0
    """Time of a denoising step, relative to what is predicted: no controller is told."""

    site: str = ""
    """Where they are."""

    def costs(self, reference: DeviceCosts) -> DeviceCosts:
        """Return what work costs on one, by what it costs on the reference device."""
        step, decode, pack = reference.step, reference.decode, reference.pack
        return DeviceCosts(
            step=Linear(
                fixed=step.fixed * self.generation, per_item=step.per_item * self.generation
            ),
            decode=Linear(per_item=decode.per_item * self.generation),
            pack=Linear(fixed=pack.fixed * self.pack, per_item=pack.per_item * self.pair),
        )
