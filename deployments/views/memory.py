"""``digen size --memory``: what a recipe needs on devices and on the host, and which cards do."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from deployments.views.size import Quantities, counted
from digen_core.config.run import RunConfig
from digen_core.inputs.text import short
from digen_core.planning.capacity import GB
from digen_core.planning.memory import Memory
from digen_core.planning.memory_count import memory_of

CARDS: Final = (24, 48, 80, 141)
"""Memory of cards that people have, GB."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a config needs where it generates and trains."""

    fragment_size: int
    batch_size: int
    pack_size: int
    memory: Memory  # of a device, or of each GPU of a gang that was asked for

    def on_card(self, gigabytes: int) -> str:
        """Return what a card can do with one sample and one pair at a time."""
        room = gigabytes * GB
        if self.memory.both(1, 1) <= room:
            return "both"
        roles = {"generates": self.memory.rollout(1), "trains": self.memory.trainer(1)}
        return " or ".join(word for word, needed in roles.items() if needed <= room) or "-"

    def as_dict(self) -> dict[str, object]:
        """Return bytes by what they are for."""
        peaks = {
            "rollout": self.memory.rollout(self.fragment_size, self.batch_size),
            "trainer": self.memory.trainer(self.pack_size),
            "both": self.memory.both(self.fragment_size, self.pack_size, self.batch_size),
            "host": self.memory.host,
        }
        parts = asdict(self.memory) | {"offload": sorted(self.memory.offload)}
        for name in ("step", "decode", "pack"):
            parts[name] = getattr(self.memory, name).model_dump()
        sizes = {
            "fragment_size": self.fragment_size,
            "batch_size": self.batch_size,
            "pack_size": self.pack_size,
        }
        return {**sizes, **peaks, "parts": parts}


def needs_of(config: RunConfig, gang: int = 1) -> Needs:
    """Count what a config needs.

    Args:
        config: of the run.
        gang: GPUs that hold the model together, as ``config.parallel`` says.

    Raises:
        UserError: the model's settings are not there, or do not fit the config.
    """
    found = counted(memory_of, config, gang)
    return Needs(config.fragment_size, config.batch_size, config.train.pack_size, found)


def quantities(needs: Needs) -> Quantities:
    """Return quantity and unit -> number."""
    memory, fragment, pack = needs.memory, needs.fragment_size, needs.pack_size
    values = {
        ("weights", "GB"): memory.weights,
        ("text encoders", "GB"): memory.text_encoders,
        ("step of a sample", "GB"): memory.step(1),
        ("decoding of a sample", "GB"): memory.decode(1),
        ("gradient of a pair", "GB"): memory.pack(1),
        ("sum of gradients", "GB"): memory.gradient_sum,
        ("device that generates one sample", "GB"): memory.rollout(1),
        ("a batch of the config", "GB"): memory.rollout(fragment, needs.batch_size),
        ("device that trains one pair", "GB"): memory.trainer(1),
        ("a pack of the config", "GB"): memory.trainer(pack),
        ("host of the optimizer", "GB"): memory.host,
    }
    cards = {(f"card of {size} GB", ""): needs.on_card(size) for size in CARDS}
    return {key: short(value / GB) for key, value in values.items()} | cards


def rows_of(found: Mapping[str, Needs]) -> dict[str, Quantities]:
    """Return the quantities of each config."""
    return {name: quantities(needs) for name, needs in found.items()}
