"""Notifications of what went wrong in a run: to observers; in Prefect a log line and an event."""

from collections.abc import Mapping
from shlex import quote

from prefect import get_run_logger
from prefect.events import emit_event

from digen_core.inputs.text import number_of
from digen_core.records import IterationRecord
from digen_core.rollout.sampler import nonfinite_text
from flows.runtime.context import RunContext
from flows.runtime.observers import warn


def notify(run: RunContext, event: str, text: str) -> None:
    """Notify the observers, and log a line on the run's own page and emit an event that says it.

    Args:
        run: its context.
        event: what happened, such as "worker-lost"; the event is ``digen.<event>``.
        text: one sentence: what happened, where, and what to do.
    """
    warn(text)
    flow_run_id = run.lineage.flow_run_ids[-1]
    get_run_logger().warning(text, extra={"flow_run_id": flow_run_id})
    emit_event(
        f"digen.{event}",
        resource={
            "prefect.resource.id": f"digen.run.{run.run_id}",
            "prefect.resource.name": run.run_id,
        },
        related=[
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
                "prefect.resource.role": "flow-run",
            }
        ],
        payload={"message": text},
    )


def notify_of_clipping(run: RunContext, record: IterationRecord) -> None:
    """Say, once a run, if the trainer's arithmetic alone takes fresh samples out of the clip range.

    GRPO-Guard's range is one of normalised ratios, and Flow-DPPO has none: nothing is said there.
    """
    clip, error = run.config.algorithm.ratio_clip, record.metrics.get("train/replay_error", 0.0)
    if clip is not None and not error <= clip and run.progress.once("clipping"):
        notify(
            run,
            "fresh-samples-clipped",
            f"iteration {record.iteration + 1}: rollout and trainer round log-probs differently, "
            f"by up to {error:.1g}, which is more than algorithm.clip_range "
            f"({clip:g}): fresh samples are clipped. "
            "Set algorithm.correction = 'recompute', which takes stale "
            "samples for fresh ones, or compute in float32 (said once)",
        )


def notify_of_parts(run: RunContext, device: str, num_samples: int) -> None:
    """Say, once of a device, that samples do not fit into its memory together."""
    _notify_once(
        run,
        device,
        "samples-do-not-fit",
        f"{device} has not enough memory to denoise {num_samples} samples at once: it does so in "
        "parts, which takes longer. A smaller rollout.fragment_size or rollout.batch_size, or "
        "model.dtype = 'bfloat16', avoids that (said once)",
    )


def notify_of_unlike_batches(run: RunContext) -> None:
    """Say, once a run, that samples of one batch are not denoised together."""
    _notify_once(
        run,
        "",
        "batch-apart",
        "groups of one batch differ in the length of their texts or in their images, as the model "
        "is given them, in height and width, or in noisy steps: these are denoised one after the "
        "other, so rollout.batch_size gains less (said once)",
    )


def notify_of_smaller_packs(run: RunContext, device: str, num_pairs: int) -> None:
    """Say, once of a device, that a pack did not fit into its memory."""
    _notify_once(
        run,
        device,
        "pack-does-not-fit",
        f"{device} has not enough memory for a pack of {number_of(num_pairs, 'pair')}: it trains "
        "half as many at once from now on. train.gradient_checkpointing = true or a smaller "
        "train.pack_size avoids that (said once)",
    )


def notify_of_dropped_group(
    run: RunContext, iteration: int, group: int, found: Mapping[int, str]
) -> None:
    """Say, once a run, that a group is dropped because a number of it is none.

    Args:
        run: its context.
        iteration: of the group.
        group: its index.
        found: what is NaN or infinite, by sample; empty: it lacks a score.
    """
    if run.progress.once("group-dropped"):
        text = (
            nonfinite_text((iteration, group), found)
            if found
            else (f"iteration {iteration + 1}, group {group}: a sample has no score")
        )
        notify(
            run,
            "group-dropped",
            f"{text}. The group is dropped (said once; numerics/dropped_groups counts them); "
            + how_to_look(run, iteration),
        )


def notify_of_skipped_update(run: RunContext, iteration: int, found: str) -> None:
    """Say, once a run, that an update of an iteration is not made because a number is none."""
    if run.progress.once("update-skipped"):
        notify(
            run,
            "update-skipped",
            f"iteration {iteration + 1} skips an update: {found} (said once; "
            f"numerics/skipped_updates counts them); {how_to_look(run, iteration)}",
        )


def how_to_look(run: RunContext, iteration: int) -> str:
    """Return how to find out where a number became NaN or infinite."""
    return f"digen replay {quote(str(run.run_dir))} {iteration + 1} --nonfinite does it again"


def _notify_once(run: RunContext, device: str, event: str, text: str) -> None:
    if run.progress.once(f"{event} {device}"):
        notify(run, event, text)
