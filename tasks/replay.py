"""Train an iteration again from what was kept, in this process: the run's own tasks, no workers."""

from dataclasses import dataclass
from pathlib import Path

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, name_of
from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.data.prompts import SizedPrompt
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.reference.replay import KeptIteration
from digen_core.training.train_state import TrainState
from digen_core.transport.arrays import distance
from tasks.rollout import encode
from tasks.setup import load_engine
from tasks.train import reduce, train_pack
from tasks.versions import first_state, publish, push_weights, step
from tasks.worker.engine import Engine, VersionError

REPLAY = "replay"  # run id of the engine


@dataclass(frozen=True)
class Replayed:
    """The version that a replay made."""

    state: TrainState
    metrics: dict[str, float]
    difference: float | None  # to the run's own next version; None: it is not kept


def replay(run_dir: Path, kept: KeptIteration) -> Replayed:
    """Make the update of an iteration.

    Args:
        run_dir: folder of the run.
        kept: of the iteration, and the settings to learn with.

    Raises:
        UserError: the model cannot be loaded, a pack does not fit into memory, or a checkpoint
            is damaged.
        VersionError: the version before could not be loaded: its content has changed in memory.
        FloatingPointError: the loss is not finite.
    """
    config = kept.config.model_copy(update={"rewards": {}})  # none is asked again
    engine = load_engine(REPLAY, config, REPLAY, ("rollout", "trainer"))
    before = _state_before(engine, kept)
    pushed, _ = publish(REPLAY, "publish", before)
    _, loaded = push_weights(REPLAY, "push", pushed)
    if loaded.failure:
        raise VersionError(f"version {before.version} could not be loaded: {loaded.failure}")
    total, iteration = None, kept.record.iteration
    prompts = {
        group: SizedPrompt(prompt, config.size_of(iteration, group))
        for group, prompt in kept.prompts.items()
    }
    different = {own.key: own for own in prompts.values()}
    conditions, _ = encode(REPLAY, "encode", list(different.values()))
    for pack in kept.packs:
        groups = {block.fragment.group for block in pack.blocks}
        total, trained = train_pack(
            REPLAY,
            f"train p{pack.index:03d}",
            pack=pack,
            version=before.version,
            segments=[tuple(s for s in kept.segments if s.fragment.group in groups)],
            conditions=[conditions],
            keys={group: prompts[group].key for group in groups},
            advantages={group: kept.advantages[group] for group in groups},
            previous=total,
            trained_from=before.version,
            run_dir=run_dir,
        )
        if trained.too_large:
            raise UserError(
                f"a pack of {number_of(pack.num_pairs, 'pair')} does not fit into memory; use "
                "a smaller --train.pack-size"
            )
    assert total is not None, "an iteration that was trained has packs"
    gradient, _ = reduce(REPLAY, "reduce", total)
    state, update = step(REPLAY, "optimizer step", before, gradient, before.version, is_last=True)
    return Replayed(state, update.metrics, _difference(run_dir, state))


def _state_before(engine: Engine, kept: KeptIteration) -> TrainState:
    keeps_old = engine.config.keeps_old
    if kept.checkpoint is None:
        return first_state(REPLAY)
    state = read_checkpoint(kept.checkpoint)
    if keeps_old != (state.old is not None):
        raise UserError(
            "algorithm.old_policy_decay: the run's checkpoints "
            f"{'have no' if keeps_old else 'have an'} old policy; leave it as it was"
        )
    return state


def _difference(run_dir: Path, state: TrainState) -> float | None:
    """Return the largest difference to the run's own version, relative to its largest weight."""
    checkpoint = run_dir / CHECKPOINTS_OF_RUN / name_of(state.version)
    if not checkpoint.exists():
        return None
    return distance(state.weights, read_checkpoint(checkpoint).weights)
