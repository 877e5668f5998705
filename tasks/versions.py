"""Version tasks: the state of version 0, the optimizer step, publish and push."""

from collections.abc import Collection

from digen_core.config.run import RunConfig
from digen_core.models.trainable import initial_weights
from digen_core.training.contents import contents_of
from digen_core.training.gradient_sum import UpdateGradient
from digen_core.training.optimizer import NonfiniteGradientError, learning_rate_of, optimizer_step
from digen_core.training.train_state import (
    PolicyVersion,
    TrainState,
    initial_state,
    published,
    version_hash,
    without_others,
)
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import HeldVersion, Pushed, Updated
from tasks.worker.engine import Engine, engine_of, working
from tasks.worker.fetching import load_version
from tasks.worker.shelf import AVERAGE


@body("start_state", HeldVersion)
def start_state(run_id: str, label: str) -> tuple[TrainState, HeldVersion]:
    """Make version 0."""
    with working(run_id):
        state = first_state(run_id)
    return state, HeldVersion(0, state.weights_hash)


@together
def first_state(run_id: str) -> TrainState:
    """Return version 0, to be kept if it is the last; in a gang each member has its rows."""
    engine = engine_of(run_id)
    config, gang = engine.config, engine.gang
    weights = initial_weights(engine.policy, config.train.lora, seed=config.seed, gang=gang)
    engine.unsaved[0] = state = initial_state(weights, keeps_old=config.keeps_old, gang=gang)
    return state


@body("optimizer step", Updated)
def step(
    run_id: str,
    label: str,
    state: TrainState,
    total: UpdateGradient,
    trained_from: int,
    *,
    is_last: bool,
) -> tuple[TrainState, Updated]:
    """Make the next version; its checkpoint is written beside the tasks that follow.

    If the update is NaN or infinite, and that does not end the run, the state stays as it is.

    Args:
        run_id: of the run.
        label: of the task run.
        state: of the version before.
        total: gradient of the update.
        trained_from: version from which the iteration stepped first.
        is_last: whether no update of the iteration follows.

    Raises:
        NonfiniteGradientError: the gradient is NaN or infinite, and that ends the run.
    """
    with working(run_id) as engine:
        config, skipped = engine.config, total.metrics.nonfinite
        learning_rate = learning_rate_of(config.train, state.version, config.num_updates)
        made = state
        if not skipped:
            made = stepped(run_id, state, total, learning_rate, trained_from, is_last=is_last)
    if made is state:
        skipped = skipped or "the norm of the gradient is NaN or infinite"
    metrics = {} if skipped else _metrics_of(total, made, config, learning_rate)
    return made, Updated(made.version, made.weights_hash, metrics, skipped)


def _metrics_of(
    total: UpdateGradient, made: TrainState, config: RunConfig, learning_rate: float
) -> dict[str, float]:
    """Return what an update measured."""
    sums, count = total.metrics, total.metrics.num_pairs
    error, mean_error = sums.replay_error, sums.mean_replay_error
    cosine, stale = sums.agreement.cosine, sums.num_stale
    return {
        "train/loss": sums.loss / count,
        "train/clip_fraction": sums.clipped / count,
        "train/approx_kl": sums.approx_kl / count,
        "train/max_log_ratio": sums.max_log_ratio,
        "train/grad_norm": made.grad_norm,
        "train/learning_rate": learning_rate,
        **({"train/kl": sums.kl / count} if config.algorithm.kl_coefficient else {}),
        **({"train/stale_clip_fraction": sums.stale_clipped / stale} if stale else {}),
        **({} if error is None else {"train/replay_error": error}),
        **({} if mean_error is None else {"train/mean_replay_error": mean_error}),
        **({} if cosine is None else {"train/gradient_cosine": cosine}),
        **{f"device/{name}/replay_error": value for name, value in sums.replay_errors.items()},
    }


@together
def stepped(
    run_id: str,
    state: TrainState,
    total: UpdateGradient,
    learning_rate: float,
    trained_from: int,
    *,
    is_last: bool,
) -> TrainState:
    """Return the next version, to be kept; in a gang each member steps its rows.

    If the gradient is NaN or infinite, and that does not end the run, it is the state as it is.

    Raises:
        NonfiniteGradientError: the gradient is NaN or infinite, and that ends the run.
    """
    engine = engine_of(run_id)
    try:
        with engine.needing_memory("step"):
            next_state = optimizer_step(
                state,
                total.gradient,
                engine.config.train,
                learning_rate=learning_rate,
                old_decay=engine.config.algorithm.old_share(state.version + 1),
                trained_from=trained_from,
                keep_start=engine.config.keeps_start and not is_last,
                gang=engine.gang,
            )
    except NonfiniteGradientError:  # on every member
        if engine.config.numerics.updates == "fail":
            raise
        return state
    engine.keep_unsaved(next_state, trained_from)
    return next_state


@body("copy state", HeldVersion)
def copy_state(
    run_id: str, label: str, state: TrainState, trained_from: int
) -> tuple[TrainState, HeldVersion]:
    """Have a state here that another device made, should that one be lost.

    It comes as Dask moves values; its hash is that of the weights that arrived.
    """
    with working(run_id) as engine:
        found = version_hash(state.weights, state.old)
        engine.keep_unsaved(state, trained_from)
    return state, HeldVersion(state.version, found)


@body("publish", HeldVersion)
def publish(
    run_id: str, label: str, state: TrainState, *, average: bool = False
) -> tuple[PolicyVersion, HeldVersion]:
    """Take out of a state what other workers need of it: the moments stay on the trainer.

    Raises:
        FloatingPointError: a weight is NaN, or infinite in the dtype in which it is pushed.
    """
    with working(run_id):
        pushed = shelved(run_id, state, average)
    return pushed, HeldVersion(pushed.version, pushed.hash)


@together
def shelved(run_id: str, state: TrainState, average: bool) -> PolicyVersion:
    """Keep what is pushed of a version where others pull it from, and return its name."""
    engine = engine_of(run_id)
    if average and state.ema is state.weights:
        found = shelved_before(engine, state)
        if found is not None:
            return found
    if not average:
        engine.drop_bases(state.version)
    rows = published(state, engine.versions.dtypes, average=average)
    pushed = PolicyVersion(state.version, contents_of(rows, engine.gang))
    engine.shelf.put(AVERAGE if average else state.version, pushed.hash, rows)
    if not average:
        engine.published = state.weights_hash, pushed
    return pushed


def shelved_before(engine: Engine, state: TrainState) -> PolicyVersion | None:
    """Keep the weights of a version as an average, as they were published before.

    Args:
        engine: of this member.
        state: of the version.

    Returns:
        Their name; None: they are not on the shelf, on no member of the gang.
    """
    if engine.published is None or engine.published[0] != state.weights_hash:
        return None
    version = engine.published[1]
    rows = engine.shelf.rows(version.hash)
    if rows is None:
        return None
    pushed = PolicyVersion(version.version, without_others(version.contents))
    engine.shelf.put(AVERAGE, pushed.hash, without_others(rows))
    return pushed


@body("push", Pushed)
def push_weights(
    run_id: str,
    label: str,
    policy_version: PolicyVersion,
    source: tuple[str, ...] = (),
    *,
    needed: Collection[int] = (),
    by_delta: bool = False,
    base: int = -1,
) -> tuple[None, Pushed]:
    """Load a version on this device, and acknowledge it with the content's hash.

    Args:
        run_id: of the run.
        label: of the task run.
        policy_version: to load.
        source: addresses of the workers of a device that holds it, by rank; of itself, none.
        needed: other versions that work may name; all others are dropped.
        by_delta: have deltas sent, of a version that both devices hold.
        base: version that the iteration before ended with, to be served on: deltas are of it.
    """
    with working(run_id):
        failure = load_version(
            run_id,
            policy_version,
            source,
            needed=needed,
            by_delta=by_delta,
            base=base,
        )
    return None, Pushed(policy_version.version, policy_version.hash, failure)
