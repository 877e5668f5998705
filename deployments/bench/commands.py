"""The command ``digen bench``: what orchestration costs, and what layouts gain."""

import sys
from math import inf
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from deployments.overrides import ConfigTokens, config_of
from deployments.shipped import find_scenario, shipped_configs
from digen_core.config.load import is_config, load_config
from digen_core.errors import UserError

T = TypeVar("T")
Several = Annotated[list[T] | None, Parameter(consume_multiple=True, negative="")]

bench = App(name="bench", help="Measure what orchestration costs, and what layouts gain.")


@bench.command
def runner(*, num_tasks: int = 60, rounds: int = 3) -> int:
    """Compare the cost of a task: bare Dask, digen's lean runner, Prefect's Dask runner.

    Example: digen bench runner --rounds 5

    Args:
        num_tasks: Tasks at once in each round.
        rounds: Interleaved rounds.
    """
    if num_tasks < 2 or rounds < 1:
        raise UserError(
            f"--num-tasks is {num_tasks} and --rounds {rounds}; use num-tasks >= 2, rounds >= 1"
        )

    from deployments.bench import runner as bench_runner

    measured = bench_runner.bench_runner(num_tasks, rounds)
    bench_runner.print_bench(measured)
    return 0 if measured.holds else 1


@bench.command(usage="Usage: digen bench overhead CONFIG [--iterations N] [--KEY VALUE ...]")
def overhead(*tokens: ConfigTokens, iterations: int = 3) -> int:
    """Measure how much of a run's time is orchestration.

    Example: digen bench overhead shapes --iterations 5

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        iterations: Iterations to measure.
    """
    config = config_of(tokens, "digen bench overhead")
    if iterations < 1:
        raise UserError(f"--iterations is {iterations}; use 1 or more")

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import overhead as bench_overhead

    bench_overhead.main(config, iterations)
    return 0


@bench.command(usage="Usage: digen bench packs CONFIG [--rounds N] [--KEY VALUE ...]")
def packs(*tokens: ConfigTokens, rounds: int = 7) -> int:
    """Time packs of several pairs against packs of one, on a trainer alone.

    Example: digen bench packs shapes --train.pack-size 64

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        rounds: Interleaved rounds.
    """
    config = config_of(tokens, "digen bench packs")
    if rounds < 1:
        raise UserError(f"--rounds is {rounds}; use 1 or more")

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import packs as bench_packs

    bench_packs.main(config, rounds)
    return 0


@bench.command(
    usage="Usage: digen bench utilization CONFIG [--blocks F] [--rounds N] [--peak-tflops P] "
    "[--KEY VALUE ...]"
)
def utilization(
    *tokens: ConfigTokens, blocks: float = 1.0, rounds: int = 7, peak_tflops: float | None = None
) -> int:
    """Measure the FLOP/s of steps and packs of a model of real size here, without its weights.

    Example: digen bench utilization flow_grpo_flux_fast
        --blocks 0.25 --peak-tflops 989

    Args:
        tokens: CONFIG and settings, as in 'digen train'; its model is a local folder or one of
            those in deployments/model_configs, whose settings are built with random weights.
        blocks: Share of the transformer's blocks to build, at least one of each kind.
        rounds: Interleaved rounds.
        peak_tflops: Peak of the device in the model's dtype, in TFLOP/s, as its data sheet says: to
            print shares of it.
    """
    config = config_of(tokens, "digen bench utilization")
    if not 0 < blocks <= 1 or rounds < 1:
        raise UserError(
            f"--blocks is {blocks} and --rounds {rounds}; use blocks above 0 and up to 1, "
            "rounds >= 1"
        )
    if peak_tflops is not None and not 0 < peak_tflops < inf:
        raise UserError(f"--peak-tflops is {peak_tflops}; use a number above 0")

    from digen_core.preflight.model import check_compiler, check_device

    check_device(config.model, here=True)
    check_compiler(config.model)

    from deployments.bench import utilization as bench_utilization

    bench_utilization.main(config, blocks, rounds, peak_tflops)
    return 0


@bench.command
def gpu(
    *names: str,
    blocks: float = 0.2,
    rounds: int = 3,
    minutes: float = 20.0,
    device: str = "auto",
    peak_tflops: float | None = None,
) -> int:
    """Find the attention, compilation and batch sizes with which this GPU computes fastest.

    It prints a Markdown table as it comes, and the best of each model. It needs no weights.

    Example: digen bench gpu
    Example: digen bench gpu flow_grpo_flux_fast --blocks 0.5 --minutes 5

    Args:
        names: Recipes or configs; default: FLUX.1, Qwen-Image, Wan2.1 14B and HunyuanVideo at their
            recipes' sizes.
        blocks: Share of the transformers' blocks to build, at least one of each kind.
        rounds: Interleaved rounds.
        minutes: After which no further setting is tried.
        device: Torch device; auto: the GPU, and nothing is measured where there is none.
        peak_tflops: Peak of the device in bfloat16, in TFLOP/s; default: by its name.
    """
    _require_all(
        blocks=(blocks, 0 < blocks <= 1, "a number above 0 and up to 1"),
        rounds=(rounds, rounds >= 1, "1 or more"),
        minutes=(minutes, 0 < minutes < inf, "a number above 0"),
        peak_tflops=(
            peak_tflops,
            peak_tflops is None or 0 < peak_tflops < inf,
            "a number above 0",
        ),
    )

    import torch

    if device == "auto" and not torch.cuda.is_available():
        sys.stdout.write("no GPU is here: nothing is measured; --device cpu measures the CPU\n")
        return 0

    from digen_core.config.model import ModelConfig
    from digen_core.preflight.model import check_device

    device = "cuda" if device == "auto" else device
    check_device(ModelConfig(device=device), here=True)

    from deployments.bench import gpu as bench_gpu

    bench_gpu.main(
        names,
        device=device,
        share=blocks,
        rounds=rounds,
        minutes=minutes,
        peak=peak_tflops or 0.0,
    )
    return 0


@bench.command
def tracking(*, rounds: int = 3, iterations: int = 6, step_seconds: float = 0.1) -> int:
    """Measure what MLflow and Prefect's pages cost: emulated runs with and without them.

    Example: digen bench tracking --rounds 5

    Args:
        rounds: In which a run with them and one without take turns.
        iterations: To measure in each run, after one that warms up.
        step_seconds: Of an emulated denoising step.
    """
    if rounds < 1 or iterations < 1 or not 0 < step_seconds <= 10:
        raise UserError(
            f"--rounds is {rounds}, --iterations {iterations} and --step-seconds {step_seconds}; "
            "use rounds >= 1, iterations >= 1, step-seconds above 0 and up to 10"
        )

    from deployments.bench import tracking as bench_tracking

    measured = bench_tracking.bench_tracking(rounds, iterations, step_seconds)
    bench_tracking.print_bench(measured)
    return 0 if measured.holds else 1


@bench.command
def push(*, megabytes: int = 200, rounds: int = 7, tls: bool = False) -> int:
    """Measure a push of all weights between two workers here, pulled and as it was before.

    It says what is moved, too, and what memory the receiver needs beside the version.

    Example: digen bench push --megabytes 400 --tls

    Args:
        megabytes: Of a version in bfloat16, roughly.
        rounds: In which both ways take turns, after two that warm up.
        tls: Whether the workers encrypt what they say, as those of a run do by default.
    """
    _require_all(
        megabytes=(megabytes, 1 <= megabytes <= 10_000, "1 to 10000"),
        rounds=(rounds, rounds >= 1, "1 or more"),
    )

    from deployments.bench import push as bench_push

    measured = bench_push.bench_push(megabytes, rounds, tls=tls)
    bench_push.print_bench(measured)
    return 0 if measured.holds else 1


@bench.command
def gang(*, members: Several[int] = None, num_commands: int = 500) -> int:
    """Measure what a command inside a gang costs: its leader calls all members, and waits.

    Example: digen bench gang --members 2 4 8

    Args:
        members: Of the gangs; 2 and 4 if none are given.
        num_commands: Of each gang, without arguments and with 1 MB of them.
    """
    sizes = members or [2, 4]
    _require_all(
        members=(sizes, all(2 <= size <= 64 for size in sizes), "2 to 64"),
        num_commands=(num_commands, num_commands >= 2, "2 or more"),
    )

    from deployments.bench import gang as bench_gang

    costs = bench_gang.bench_gang(sizes, num_commands)
    bench_gang.print_bench(costs)
    return 0 if all(cost.holds for cost in costs) else 1


@bench.command
def controller(*, layout: Several[str] = None, devices: Several[int] = None) -> int:
    """Measure what the controller's decisions cost as clusters grow, in simulated runs.

    Example: digen bench controller --layout tsp elastic --devices 64 256 1024

    Args:
        layout: Layouts to measure; default: colocated-strong, tsp, tag, elastic, tcss.
        devices: Numbers of devices, each with 16 fragments; default: 64, 256, 1024.
    """
    from deployments.views.simulate import layouts_of

    names = layouts_of(layout or ["colocated-strong", "tsp", "tag", "elastic", "tcss"])
    sizes = sorted(set(devices or [64, 256, 1024]))
    if sizes[0] < 2:
        raise UserError(f"--devices names {sizes[0]}; use 2 or more")

    from deployments.bench import controller as bench_controller

    bench_controller.print_bench(bench_controller.bench_controller(names, sizes))
    return 0


@bench.command
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
        _require_all(
            iterations=(iterations, iterations >= 1, "1 or more"),
            rounds=(rounds, rounds >= 1, "1 or more"),
        )
        return _real_layouts(config, layout, rounds, iterations)

    is_number = steps_per_task.isdecimal() and 1 <= int(steps_per_task[:5]) <= 1000
    _require_all(
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


def _require_all(**options: tuple[object, bool, str]) -> None:
    """Refuse the first option, as (value, whether it is right, what is), that is wrong."""
    for name, (value, is_right, rule) in options.items():
        if not is_right:
            raise UserError(f"--{name.replace('_', '-')} is {value}; use {rule}")


@bench.command(usage="Usage: digen bench learning CONFIG [--layout NAME ...] [--KEY VALUE ...]")
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
    if metric != "reward" and metric.rpartition("/")[0] not in config.rewards:
        raise UserError(
            f"--metric is {metric}; use reward, or REWARD/COMPONENT with one of the config's "
            f"rewards: {', '.join(config.rewards)}"
        )

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import learning as bench_learning

    output.mkdir(parents=True, exist_ok=True)
    bench_learning.main(config, names, seeds or [0, 1, 2], metric, output)
    return 0


@bench.command(usage="Usage: digen bench algorithms CONFIG [--only NAME ...] [--KEY VALUE ...]")
def algorithms(*tokens: ConfigTokens, only: Several[str] = None, seeds: Several[int] = None) -> int:
    """Compare what the algorithms make of the same number of samples, without a schedule.

    Example: digen bench algorithms shapes --num-iterations 30

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        only: Algorithms; default: all.
        seeds: Seeds of the runs; default: 0 1 2.
    """
    config = config_of(tokens, "digen bench algorithms")

    from digen_core.preflight.run import check_inputs

    check_inputs(config)

    from deployments.bench import algorithms as bench_algorithms

    unknown = [name for name in only or [] if name not in bench_algorithms.SETTINGS]
    if unknown:
        raise UserError(
            f"--only names {unknown[0]!r}; use some of {', '.join(bench_algorithms.SETTINGS)}"
        )
    bench_algorithms.main(config, only or list(bench_algorithms.SETTINGS), seeds or [0, 1, 2])
    return 0


EMULATED = ("colocated", "colocated-strong", "tsp", "elastic", "tcss")
REAL = ("colocated", "colocated-strong", "disaggregated", "auto")


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
