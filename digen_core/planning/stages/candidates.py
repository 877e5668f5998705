"""Candidates in stages: gangs whose members hold a model together, if none holds it alone."""

from collections.abc import Sequence
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.planning.candidates import Candidate, MemoryOf
from digen_core.planning.capacity import ShortageError, fit_recipe
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.sizes import Sizes
from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.codecs import Codec
from digen_core.planning.stages.gangs import Maker, Staged

NUM_FITTED: Final = 3
"""Gangs, those with the most pairs per second, whose memory is counted, and one across sites."""

LEADER_SHARES: Final = (1.0, 0.75, 0.5)
"""Of a leader's memory beside its text encoders that its stage may take: it decodes, too."""


def staged_candidates(
    config: RunConfig,
    cluster: Cluster,
    chain: Chain,
    sizes: Sizes,
    codecs: Sequence[Codec],
    text_bytes: int,
    memory_of: MemoryOf,
) -> list[Candidate]:
    """Return the gangs in stages that fit, those with the most pairs per second first.

    Args:
        config: of the run; the number of stages is kept if it says one.
        cluster: devices of which ``tflops``, ``capacity`` and links are known.
        chain: of the config's model.
        sizes: of the same.
        codecs: that cuts may have, the mildest first.
        text_bytes: of the model's text encoders.
        memory_of: counts.
    """
    for share in LEADER_SHARES:
        made = Maker(config, cluster, chain, sizes, codecs, text_bytes, share).all()
        some = made[:NUM_FITTED] + [own for own in made[NUM_FITTED:] if own.crosses_sites]
        found = [own for staged in some if (own := _fitted(staged, memory_of)) is not None]
        if found:
            return found
    return []


def _fitted(staged: Staged, memory_of: MemoryOf) -> Candidate | None:
    """Hold the leaders' stage against their memory: that of two samples tells those of more."""
    config = staged.config
    few = {
        "rollout": config.rollout.model_copy(update={"fragment_size": 2, "batch_size": None}),
        "train": config.train.model_copy(update={"pack_size": 2}),
    }
    counted = config.model_copy(update=few)
    sizes = {group.members for group in staged.devices.devices}
    memories = {size: memory_of(counted, size) for size in sizes}
    try:
        room = fit_recipe(config, staged.devices, memories)
    except ShortageError:
        return None
    return Candidate(config, staged.devices, room, staged.ranks, staged.left_out)
