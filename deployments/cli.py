"""The console command ``digen``.

Arguments, the config and what it names are checked before torch, Prefect or MLflow are imported:
help and mistakes show at once. A mistake of the user is one line on stderr and exit code 2; a run
that fails later is one line and exit code 1.
"""

import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter

from deployments.bench import bench
from deployments.errors import RunFailedError
from deployments.local import apply_settings
from deployments.overrides import ConfigTokens, config_of, parse_arguments
from digen_core.config import ConfigError, Family

WELCOME = """\
digen: reinforcement-learning post-training of diffusion and flow-matching models

  digen train deployments/configs/shapes.toml     train the embedded model; minutes on a CPU
  digen config show deployments/configs/shapes.toml
                                                  every setting with its meaning
  digen evaluate runs/NAME                        judge a finished run again
  digen report runs/NAME                          see what its devices waited for
  digen --help                                    all commands; COMMAND --help shows an example
"""


def _version() -> str:
    try:
        return version("digen")
    except PackageNotFoundError:
        return "unknown (not installed)"


app = App(
    name="digen",
    help="Reinforcement-learning post-training of diffusion and flow-matching models.",
    version=_version,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
_pretrain = App(name="pretrain", help="Make an embedded base model from nothing.")
_config = App(name="config", help="Look at configs.")
for _group in (_pretrain, _config, bench):
    app.command(_group)


@app.command(usage="Usage: digen train CONFIG [--KEY VALUE ...]")
def train(*tokens: ConfigTokens) -> int:
    """Post-train a model as a config file says; any of its keys can be set here too.

    Example: digen train deployments/configs/shapes.toml --rollout.group-size 8 --name first-try

    Values are written as in TOML; "null" is null. 'digen config show' lists all keys.
    """
    config = config_of(tokens, "digen train")

    from digen_core.checks import check_inputs

    check_inputs(config)

    from deployments import local, summary

    summary.print_run(local.run_training(config))
    return 0


@app.command
def evaluate(
    run: Path, /, *, prompts: Path | None = None, samples_per_prompt: int | None = None
) -> int:
    """Sample the model of a finished run without noise, and score the images.

    Example: digen evaluate runs/shapes-20260101-120000 --samples-per-prompt 4

    Args:
        run: Folder of the run.
        prompts: Text file, one prompt a line; default: the run's evaluation prompts.
        samples_per_prompt: Images per prompt; default: as the run's config says.
    """
    if not run.is_dir():
        raise ConfigError(f"there is no run folder {run}; give one such as runs/NAME")
    if samples_per_prompt is not None and samples_per_prompt < 1:
        raise ConfigError(f"--samples-per-prompt is {samples_per_prompt}; use 1 or more")
    if prompts is not None:
        from digen_core.data import read_prompts

        read_prompts(str(prompts))

    from deployments import local, summary

    summary.print_evaluation(local.run_evaluation(run, prompts, samples_per_prompt))
    return 0


@app.command
def report(
    run: Path,
    /,
    *,
    out: Path | None = None,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
) -> int:
    """Draw what each device of a run did and waited for, iteration by iteration.

    Example: digen report runs/shapes-20260101-120000 --out report

    Args:
        run: Folder of the run.
        out: Folder for the pictures, the page report.html and the trace; default: RUN/report.
        every: Draw every timeline; else of more than 20 iterations only the first, one of median
            length and the last.
    """
    from deployments.report import print_report, write_report

    print_report(write_report(run, out or run / "report", every))
    return 0


@app.command
def simulate(
    scenario: str,
    /,
    *,
    layout: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    split: int | None = None,
    helpers: int | None = None,
    assistants: int | None = None,
    stale_share: float | None = None,
    iterations: int = 4,
    seed: int = 0,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Compare layouts on a cluster that is only simulated, each at its best split.

    Example: digen simulate B --layout tsp elastic

    Args:
        scenario: A, A2, B, B2, C, D, E or F (deployments/scenarios), or a TOML file like those.
        layout: Layouts to compare; default: all.
        split: Rollout devices, the others train; default: the fastest with at least a quarter.
        helpers: Trainers that may generate; default: as many as pay.
        assistants: Rollout devices that may train; default: as many as pay.
        stale_share: Share of the groups that may be generated with the version before, in tcss and
            elastic; default: in tcss the fastest of 0, 0.25 and 0.5, in elastic 0.
        iterations: Of each simulation; at least 12 with stale groups.
        seed: Same seed, same table.
        as_json: Print a list of objects instead of the table.
    """
    from deployments import simulate as command

    found, layouts = command.find_scenario(scenario), command.layouts_of(layout)
    if iterations < command.LEAST_ITERATIONS or seed < 0:
        raise ConfigError(
            f"--iterations is {iterations} and --seed {seed}; "
            f"use iterations >= {command.LEAST_ITERATIONS}, seed >= 0"
        )

    from digen_core.planning.search import Fixed

    fixed = Fixed(split, helpers, assistants, stale_share)
    rows = command.simulate(found, layouts, fixed, num_iterations=iterations, seed=seed)
    if as_json:
        command.write_json(rows)
    else:
        command.print_rows(rows, found.description)
    return 0


@app.command(usage="Usage: digen plan CONFIG --cluster CLUSTER [--json] [--KEY VALUE ...]")
def plan(
    *tokens: ConfigTokens,
    cluster: str,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Predict which layout, split and sizes are the fastest for a config on a cluster.

    Example: digen plan deployments/configs/shapes.toml --cluster 2-cores

    Args:
        tokens: CONFIG and settings, as in 'digen train'. Packs are at most as large as its own;
            stale groups are considered if its schedule.max_stale_share is above 0.
        cluster: 2-cores, 16x-mixed, 32x-h100, 8x-h100 or 32x-h100-a100 (deployments/clusters), or a
            TOML file like those. The last two estimate what the config's model costs.
        as_json: Print a list of objects, the best plan first, instead of the table.
    """
    config = config_of(tokens, "digen plan")

    from deployments import plan as command

    found = command.find_cluster(cluster)
    rows = command.plan(config, found)
    if as_json:
        command.write_json(rows)
    else:
        command.print_plan(rows, found.description)
    return 0


@app.command(usage="Usage: digen size [CONFIG] [--json | --markdown] [--KEY VALUE ...]")
def size(
    *tokens: ConfigTokens,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    markdown: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Count the parameters, arithmetic and bytes of a config's model, without its weights.

    Example: digen size deployments/configs/recipes/flow_grpo_flux_pickscore.toml

    Args:
        tokens: CONFIG and settings, as in 'digen train'; without CONFIG all shipped recipes, which
            takes some minutes.
        as_json: Print a list of objects instead of the table.
        markdown: Print the table as Markdown.
    """
    from deployments import size as command

    named = parse_arguments(tokens).path
    files = [named] if named else command.recipe_files()
    configs = {file.stem: config_of(tokens if named else [str(file), *tokens]) for file in files}
    rows = {name: command.size(config) for name, config in configs.items()}
    if as_json or markdown:
        sys.stdout.write((command.as_json if as_json else command.as_markdown)(rows) + "\n")
    else:
        command.print_sizes(rows)
    return 0


@_pretrain.command
def shapes(*, out: Path = Path("runs/models/shapes"), seed: int = 0, threads: int = 2) -> int:
    """Train the tiny FLUX of the world "shapes": about 5 to 10 minutes on two CPU cores.

    Example: digen pretrain shapes --out runs/models/mine --seed 1

    Args:
        out: Folder to save the model to; it must not hold anything yet.
        seed: Same seed, same weights on the same machine.
        threads: CPU threads.
    """
    _require_free(out)
    if threads < 1 or seed < 0:
        raise ConfigError(f"--threads is {threads} and --seed {seed}; use threads >= 1, seed >= 0")

    from deployments.pretraining import pretrain

    pretrain(out, seed=seed, threads=threads)
    return 0


@app.command
def make_tiny(family: Family, folder: Path, /, *, seed: int = 0) -> int:
    """Make a tiny pipeline of a model family with random weights, to try digen with; no downloads.

    Example: digen make-tiny wan runs/models/tiny-wan

    Args:
        family: flux, sd3, qwen_image, wan or hunyuan_video.
        folder: To save it to; it must not hold anything yet.
        seed: Same seed, same weights.
    """
    _require_free(folder)
    if seed < 0:
        raise ConfigError(f"--seed is {seed}; use 0 or more")

    from transformers.utils.logging import disable_progress_bar

    from digen_core.models.tiny import build_tiny

    disable_progress_bar()
    build_tiny(family, seed=seed).save_pretrained(folder)
    sys.stdout.write(
        f"{folder} holds a random {family} pipeline; train it with --model.family {family} "
        f"--model.path {folder}\n"
    )
    return 0


@_config.command(usage="Usage: digen config show [CONFIG] [--KEY VALUE ...]")
def show(*tokens: ConfigTokens) -> int:
    """Print every key with its meaning and value, as TOML that 'digen train' reads.

    Example: digen config show deployments/configs/shapes.toml --seed 1 > mine.toml

    Without CONFIG these are the defaults.
    """
    config = config_of(tokens)

    from digen_core.config_file import as_toml

    sys.stdout.write(as_toml(config))
    return 0


def _require_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; remove it or choose another folder")


def run(arguments: Sequence[str]) -> int:
    """Do what a command line says; return the exit code."""
    if not arguments:
        sys.stdout.write(WELCOME)
        return 0
    try:
        code = app(
            list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except (ConfigError, CycloptsError) as error:
        return _fail(error, 2)
    except RunFailedError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the console command."""
    # Prefect kills the process again once it has noted that it was terminated; as an exception
    # that ends what the command started, its Prefect server and workers, too.
    signal.signal(signal.SIGTERM, _terminated)
    apply_settings()
    sys.exit(run(sys.argv[1:]))


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(error: object, code: int) -> int:
    """Print one line to stderr."""
    sys.stderr.write(f"digen: {' '.join(str(error).split())}\n")
    return code
