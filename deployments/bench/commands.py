"""The command ``digen bench``, and those of its commands that tell what something costs."""

import sys
from math import inf
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from deployments.overrides import ConfigTokens, config_of
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
    require_all(
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
def push(
    *,
    megabytes: int = 200,
    rounds: int = 7,
    learning_rate: Several[float] = None,
    tls: bool = False,
) -> int:
    """Measure a push of all weights between two workers here: pulled, as before, and as a delta.

    It says what is moved, too, and what memory the receiver needs beside the version.

    Example: digen bench push --megabytes 400 --learning-rate 1e-5 1e-6

    Args:
        megabytes: Of a version in bfloat16, roughly.
        rounds: In which the ways take turns, after two that warm up.
        learning_rate: Of the step of AdamW that a delta has; 1e-5 if none are given.
        tls: Whether the workers encrypt what they say, as those of a run do by default.
    """
    rates = learning_rate or [1e-5]
    require_all(
        learning_rate=(rates, all(0 < rate <= 1 for rate in rates), "numbers above 0 and up to 1"),
        megabytes=(megabytes, 1 <= megabytes <= 10_000, "1 to 10000"),
        rounds=(rounds, rounds >= 1, "1 or more"),
    )

    from deployments.bench.push import deltas, pulls

    measured = pulls.bench_push(megabytes, rounds, tls=tls)
    pulls.print_bench(measured)
    deltas.print_deltas(deltas.bench_deltas(megabytes, rounds, rates, tls=tls))
    return 0 if measured.holds else 1


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


def require_all(**options: tuple[object, bool, str]) -> None:
    """Refuse the first option, as (value, whether it is right, what is), that is wrong."""
    for name, (value, is_right, rule) in options.items():
        if not is_right:
            raise UserError(f"--{name.replace('_', '-')} is {value}; use {rule}")
