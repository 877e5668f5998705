"""Commands of ``digen bench`` that train: comparisons, and what the repository keeps of runs."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deployments.bench.commands import Several, require_all
from deployments.overrides import ConfigTokens, config_of, parse_arguments
from deployments.shipped import find_scenario, recipe_files, shipped_configs
from digen_core.config.keys import parse_value
from digen_core.config.load import is_config, load_config
from digen_core.config.run import RunConfig
from digen_core.errors import UserError

EMULATED = ("colocated", "colocated-strong", "tsp", "elastic", "tcss")
REAL = ("colocated", "colocated-strong", "disaggregated", "auto")
RUNS = Path("runs/pictures")


def layouts(
    scenario: str,
    /,
    *,
    layout: Several[str] = None,
    iterations: int = 3,
    rounds: int = 2,
    time_scale: float = 0.2,
    steps_per_task: str = "auto",
    seed: int = 0,
) -> int:
    """Compare layouts through Prefect and Dask: emulated devices, or real compute.

    Example: digen bench layouts B --layout colocated-strong tsp elastic --time-scale 0.3
    Example: digen bench layouts shapes --iterations 5

    Args:
        scenario: A, A2, B, B2, C, D, E, F, G or H (deployments/scenarios), or a TOML file like
            those: each layout runs at its best split on emulated devices. Or the config of a run:
            each layout runs on its workers with real compute, beside the serial loop.
        layout: Layouts to compare; default: colocated, colocated-strong, tsp, elastic, tcss; with
            real compute colocated, colocated-strong, disaggregated, auto.
        iterations: Emulated: of each run; the first warms up, and stale layouts run two more. Real:
            to measure in each round.
        rounds: Real compute only: interleaved rounds.
        time_scale: Emulated only: seconds of wall clock for a second of the scenario.
        steps_per_task: Emulated only: denoising steps in one task; auto groups them as a run does.
        seed: Emulated only: same seed, same jitter.
    """
    config = shipped_configs().get(scenario, Path(scenario))
    if is_config(config):
        require_all(
            iterations=(iterations, iterations >= 1, "1 or more"),
            rounds=(rounds, rounds >= 1, "1 or more"),
        )
        return _real_layouts(config, layout, rounds, iterations)

    is_number = steps_per_task.isdecimal() and 1 <= int(steps_per_task[:5]) <= 1000
    require_all(
        time_scale=(time_scale, 0 < time_scale <= 10, "a number above 0 and up to 10"),
        iterations=(iterations, iterations >= 2, "2 or more: the first warms up"),
        steps_per_task=(
            steps_per_task,
            steps_per_task == "auto" or is_number,
            "auto, or 1 to 1000",
        ),
        seed=(seed, seed >= 0, "0 or more"),
    )

    from deployments.views import simulate as scenarios

    found = find_scenario(scenario)
    names = scenarios.layouts_of(layout or list(EMULATED))

    from deployments.bench import layouts as bench_layouts

    bench_layouts.main(
        found,
        names,
        time_scale=time_scale,
        num_iterations=iterations,
        steps_per_task="auto" if steps_per_task == "auto" else int(steps_per_task),
        seed=seed,
    )
    return 0


def learning(
    *tokens: ConfigTokens,
    layout: Several[str] = None,
    seeds: Several[int] = None,
    metric: str = "reward",
    output: Path = Path("runs/learning"),
) -> int:
    """Compare what the serial loop and layouts learn from the same number of samples.

    Example: digen bench learning shapes --metric shapes/exact

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        layout: Layouts beside the serial loop; default: elastic tcss.
        seeds: Seeds of the runs; default: 0 1 2.
        metric: Of the evaluation after training.
        output: Folder of the runs and of the curves, learning.png.
    """
    from deployments.views.simulate import layouts_of

    config = config_of(tokens, "digen bench learning")
    names = layouts_of(layout or ["elastic", "tcss"])
    _check(metric, seeds, config)

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import learning as bench_learning

    output.mkdir(parents=True, exist_ok=True)
    bench_learning.main(config, names, seeds or [0, 1, 2], metric, output)
    return 0


def algorithms(
    *tokens: ConfigTokens,
    only: Several[str] = None,
    seeds: Several[int] = None,
    metric: str = "reward",
) -> int:
    """Compare what the algorithms make of the same number of samples, without a schedule.

    Example: digen bench algorithms shapes --num-iterations 30
    Example: digen bench algorithms shapes --only flow_grpo grpo_guard --metric shapes/exact
        --train.updates-per-iteration 2

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        only: Algorithms; default: all.
        seeds: Seeds of the runs; default: 0 1 2.
        metric: Of the evaluations before and after training.
    """
    config = config_of(tokens, "digen bench algorithms")
    _check(metric, seeds, config)

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import algorithms as bench_algorithms

    unknown = [name for name in only or [] if name not in bench_algorithms.SETTINGS]
    if unknown:
        known = ", ".join(map(repr, bench_algorithms.SETTINGS))  # "flow_grpo, cps" is one
        raise UserError(f"--only names {unknown[0]!r}; use some of {known}")
    names = only or list(bench_algorithms.SETTINGS)
    bench_algorithms.main(config, names, seeds or [0, 1, 2], metric)
    return 0


def _check(metric: str, seeds: Sequence[int] | None, config: RunConfig) -> None:
    """Raise UserError unless a metric is of the config's rewards or their sum, and seeds are."""
    is_right = all(0 <= seed < 2**63 for seed in seeds or ())
    require_all(seeds=(seeds, is_right, "numbers from 0, below 2^63"))
    if metric != "reward" and metric.partition("/")[0] not in config.rewards:
        raise UserError(
            f"--metric is {metric}; use reward, or REWARD/COMPONENT with one of the config's "
            f"rewards: {', '.join(config.rewards)}"
        )


def recipe(
    *tokens: ConfigTokens,
    iterations: int = 40,
    write: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train a whole recipe on a tiny model of its family; does the evaluation's reward rise?

    Example: digen bench recipe diffusion_nft_sd3_ocr --iterations 30

    A simple reward of pixels stands for scorers. Some minutes; the exit code is 1 if the target,
    five standard errors, is not reached.

    Args:
        tokens: NAME of a recipe, and settings, as in 'digen train'.
        iterations: To train.
        write: Keep what was reached in deployments/configs/levels, if the target was.
    """
    require_all(iterations=(iterations, iterations >= 1, "1 or more"))
    arguments = parse_arguments(tokens)
    names = {path.stem: path for path in recipe_files()}
    if arguments.path is None or arguments.path.name not in names:
        raise UserError(f"digen bench recipe takes the name of a recipe: {', '.join(names)}")

    from deployments.bench import recipe as bench_recipe

    settings = {key: parse_value(key, text) for key, text in arguments.settings.items()}
    path = names[arguments.path.name]
    return 0 if bench_recipe.main(path, iterations, settings, write=write) else 1


def _real_layouts(path: Path, layout: list[str] | None, rounds: int, iterations: int) -> int:
    from deployments.views.simulate import layouts_of

    config = load_config(path)
    names = [
        name if name == "auto" else layouts_of([name])[0] for name in dict.fromkeys(layout or REAL)
    ]

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import compute as bench_compute

    bench_compute.main(config, names, rounds=rounds, iterations=iterations)
    return 0


def soak(*tokens: ConfigTokens, every_seconds: float = 30.0, seed: int = 0) -> int:
    """Train for many iterations while workers are killed, and measure what grows with them.

    Example: digen bench soak chaos --num-iterations 500 --evaluation.every 0
    Example: digen bench soak chaos --num-iterations 100000 --max-minutes 600
        --cluster.rollout-workers 10 --cluster.trainer-workers 6

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        every_seconds: Between two kills of a worker.
        seed: Of who is killed.
    """
    config = config_of(tokens, "digen bench soak")
    require_all(
        every_seconds=(every_seconds, 0 < every_seconds < inf, "a number above 0"),
        seed=(seed, seed >= 0, "0 or more"),
    )
    if config.num_iterations < 10:
        raise UserError(f"num_iterations is {config.num_iterations}; a soak needs 10 or more")
    if config.cluster.address is not None:
        raise UserError(
            f"cluster.scheduler_address is {config.cluster.address}; a soak kills workers that it "
            "starts itself: leave it out, and DASK_SCHEDULER_ADDRESS"
        )

    from digen_core.preflight.run import check_run

    check_run(config)

    from deployments import soak as long_run
    from deployments.views.terminal import terminal

    return 0 if long_run.main(config, seed, every_seconds, terminal()) else 1


def pictures(*, only: Several[str] = None, output: Path = Path("docs/images")) -> int:
    """Make the pictures of the pages again, most from real runs of the main job.

    Example: digen bench pictures --only timeline.png shapes-before-after.png

    A run of some minutes gives the first two, another edits-before-after.png; learning.png takes
    six such runs; flux-blocks.png, room-stages.png and two-sites-plan.png none. Screenshots of
    Prefect's pages are left alone.

    Args:
        only: Some of timeline.png, shapes-before-after.png, edits-before-after.png, learning.png,
            flux-blocks.png, room-stages.png, two-sites-plan.png; default: all.
        output: Folder that gets them; made if it is missing.
    """
    from deployments.bench import pictures as bench_pictures

    names = list(dict.fromkeys(only or bench_pictures.PICTURES))
    unknown = [name for name in names if name not in bench_pictures.PICTURES]
    if unknown:
        raise UserError(
            f"--only names {unknown[0]!r}; use some of {', '.join(bench_pictures.PICTURES)}"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output is {output}, and no such folder can be made: {error.strerror}"
        ) from error
    bench_pictures.main(names, output, RUNS)
    return 0


def golden(*, write: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Compare the rewards of a short run of the main job with those that the repository keeps.

    Example: digen bench golden

    It takes about a minute; the exit code is 1 if they differ.

    Args:
        write: Keep the new rewards instead, after a change that is meant to move them.
    """
    from deployments.bench import golden as bench_golden

    return bench_golden.main(write)
