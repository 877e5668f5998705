"""A comparison of the algorithms on equally many samples and pairs, by the serial loop.

Settings are the published ones but for the steps: four of the steps are trained by each, so that
all take the same time, and windows slide as often as a short run allows. DanceGRPO's noise is that
of the others: its published 0.3 makes too little of a difference in so small an image.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Any, Final

from pydantic import ValidationError

from deployments.views.terminal import borderless, terminal
from digen_core.config.load import describe
from digen_core.config.run import RunConfig
from digen_core.errors import UserError

SDE: Final = {"transition": "flow_sde", "noise_level": 0.7}
WINDOW: Final = {"window": (4, 0, 7)}
SETTINGS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "flow_grpo": (SDE, {"clip_range": 1e-4, **WINDOW}),
    "flow_grpo, cps": ({"transition": "cps", "noise_level": 0.8}, {"clip_range": 1e-4, **WINDOW}),
    "dance_grpo": (
        {"transition": "dance", "noise_level": 0.7, "initial_noise": "group"},
        {"trained_fraction": 0.6},
    ),
    "mix_grpo": (SDE, {"untrained_tail": 1, "iterations_per_window": 8}),
    "grpo_guard": (SDE, WINDOW),
    "flow_dppo": (SDE, WINDOW),
    "ddpo": (SDE, WINDOW),
    "longcat": ({"transition": "longcat_sde", "noise_level": 1.0}, WINDOW),
    "diffusion_nft": ({}, {"trained_fraction": 0.5}),
    "awm": ({}, {"num_levels": 4}),
    "dgpo": ({}, {"num_levels": 4}),
    "dpo": ({}, {"num_levels": 4}),
}
"""Name -> what it changes in ``rollout``, and all of ``algorithm`` but the type."""


def config_of(name: str, config: RunConfig, seed: int) -> RunConfig:
    """Return a config with one algorithm's settings and another seed.

    Raises:
        UserError: the settings do not fit the config.
    """
    rollout, algorithm = SETTINGS[name]
    tree = config.model_dump()
    tree["seed"] = seed
    tree["rollout"] |= rollout
    tree["algorithm"] = {"type": name.partition(",")[0], **algorithm}
    tree["schedule"] = {"layout": "disaggregated"}  # some wait for all rewards
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{name} does not fit the config: {describe(error)}") from error


def main(config: RunConfig, names: Sequence[str], seeds: Sequence[int], metric: str) -> None:
    """Train once with each seed by each algorithm, and print a metric before and after.

    Args:
        config: of the run; its own algorithm and seed do not matter.
        names: of ``SETTINGS``.
        seeds: of the runs.
        metric: of the evaluations: ``reward``, or REWARD/COMPONENT, for example ``shapes/exact``.
    """
    console = terminal()
    jobs = [config_of(name, config, seed) for name in names for seed in seeds]
    threads = config.cluster.threads_per_worker
    workers = max(1, (os.cpu_count() or 1) // threads)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = []
        judged = pool.map(partial(_judged, metric), jobs)
        for job, (before, after) in zip(jobs, judged, strict=True):
            found.append((before, after))
            console.print(
                f"{job.algorithm.type}, {job.rollout.transition}, seed {job.seed}: "
                f"{before:.3f} -> {after:.3f}"
            )
    rows = [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]
    samples = config.num_iterations * config.samples_per_iteration
    title = f"mean {metric} of held-out prompts, {samples} samples"
    table = borderless(title)
    table.add_column("algorithm", no_wrap=True)
    of_changes = ("mean change", "least change", "deviation of changes")
    for heading in ("before", *(f"seed {seed}" for seed in seeds), *of_changes):
        table.add_column(heading, justify="right")
    for name, row in zip(names, rows, strict=True):
        changes = [after - before for before, after in row]
        table.add_row(
            name,
            f"{fmean(before for before, _ in row):.3f}",
            *(f"{after:.3f}" for _, after in row),
            f"{fmean(changes):+.3f}",
            f"{min(changes):+.3f}",
            f"{stdev(changes):.3f}" if len(changes) > 1 else "",
        )
    console.print(table)


def _judged(metric: str, config: RunConfig) -> tuple[float, float]:
    """Return the mean of a metric over held-out prompts before and after training."""
    from deployments.bench.runs import evaluate_serially, train_serially
    from digen_core.models.loading import load_trainable
    from digen_core.models.policy import ALL_PARTS
    from digen_core.models.trainable import initial_weights

    policy = load_trainable(config, ALL_PARTS)
    first = initial_weights(policy, config.train.lora, seed=config.seed)
    before = evaluate_serially(config, policy, first, metric)
    run = train_serially(config, policy=policy)
    return before, evaluate_serially(config, policy, run.ema, metric)
