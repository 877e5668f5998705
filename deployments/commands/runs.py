"""Commands that make a run or look at one."""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import Annotated, Any

from cyclopts import Parameter

from deployments.overrides import ConfigTokens, config_of, parse_arguments
from digen_core.checkpoints.judging import Judging
from digen_core.checkpoints.resume import AUTO, newest_run, resumption_of
from digen_core.checkpoints.run_state import require_idle
from digen_core.checkpoints.suites import SUITES, SuiteName
from digen_core.config.keys import parse_value
from digen_core.config.load import require_run
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from digen_core.inputs.shipped import located
from digen_core.inputs.text import number_of, printable


def train(*tokens: ConfigTokens, resume: Path | None = None) -> int:
    """Post-train a model as a config file says; any of its keys can be set here too.

    Example: digen train shapes --rollout.group-size 8 --name first-try
    Example: digen train --resume runs/NAME --schedule.layout elastic
    Example: digen train shapes --resume auto

    Values are written as in TOML; "null" is null. 'digen config show' lists all keys.

    Args:
        tokens: The config file, and keys with their values.
        resume: Folder of a run to resume from its last checkpoint. Its own config is taken if
            none is given; cluster, layout and a larger number of iterations may be set. "auto" is
            the newest run of the config's name, or a new run if there is none: for whatever starts
            digen again when it has ended.
    """
    started = monotonic()
    is_auto = resume == Path(AUTO)
    config = config_of(tokens, "digen train", None if is_auto else resume)
    if is_auto:
        resume = newest_run(config)
    if resume is not None:
        require_idle(resume)

    from digen_core.preflight.run import check_run, check_run_folder

    check_run(config, is_new=resume is None)
    if resume is not None:
        check_run_folder(resume)
        resumption_of(config, resume)

    from digen_core.preflight.reward_probe import probe_before_start

    probe_before_start(config, _warn)

    from deployments import local
    from deployments.views import summary

    summary.print_run(local.run_training(config, resume), monotonic() - started)
    return 0


def evaluate(
    run: Path,
    /,
    *tokens: ConfigTokens,
    prompts: Path | None = None,
    samples_per_prompt: int | None = None,
    suite: SuiteName | None = None,
) -> int:
    """Sample the model of a finished run without noise, and score the images.

    Example: digen evaluate runs/shapes-20260101-120000 --samples-per-prompt 4
    Example: digen evaluate runs/NAME --suite geneval --prompts geneval/prompts
    Example: digen evaluate runs/NAME --rewards.clipscore 1 --evaluation.num-steps 28

    Args:
        run: Folder of the run.
        tokens: Keys of the config with other values: of rewards, which then judge in place of the
            run's own, and of how samples are made.
        prompts: File, folder or pattern of other prompts (docs/prompts.md); default: the run's
            evaluation prompts.
        samples_per_prompt: Images per prompt; default: as the run's config says, or the suite.
        suite: Published protocol that judges, in place of the run's rewards (docs/rewards.md).
    """
    settings = _settings(tokens, "RUN", ("prompts", "samples_per_prompt", "suite"))
    require_run(run)
    if samples_per_prompt is not None and samples_per_prompt < 1:
        raise UserError(f"--samples-per-prompt is {samples_per_prompt}; use 1 or more")
    place = None if prompts is None else str(prompts)
    if place is not None and "*" not in place and not Path(located(place)).exists():
        raise UserError(f"cannot read the prompt file {place}: there is none")
    asked = Judging(place, samples_per_prompt, suite, settings)

    from deployments import local
    from deployments.views import summary

    report = local.run_evaluation(run, asked, _warn)
    if suite is None:
        summary.print_evaluation(report)
    else:
        summary.print_suite(report, SUITES[suite])
    return 0


def _settings(tokens: Sequence[str], takes: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys that follow what a command takes, with their values.

    Args:
        tokens: what follows.
        takes: what the command takes before them.
        options: that it has beside keys of the config, for those that are mistyped.
    """
    arguments = parse_arguments(tokens)
    if arguments.path is not None:
        raise UserError(f"unexpected argument {str(arguments.path)!r}; it takes {takes}")
    for key in arguments.settings:
        if near := get_close_matches(key, options, cutoff=0.5):
            raise UserError(f"unknown option --{key}; did you mean --{near[0].replace('_', '-')}?")
    return {key: parse_value(key, text) for key, text in arguments.settings.items()}


def replay(
    run: Path,
    iteration: int,
    /,
    *tokens: ConfigTokens,
    nonfinite: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train an iteration of a run again from the samples it kept, perhaps with other settings.

    Example: digen replay runs/NAME 3 --algorithm.clip-range 1e-3 --train.learning-rate 1e-4
    Example: digen replay runs/NAME 3 --nonfinite --model.dtype float32

    Nothing is generated and nothing is written: the update's metrics are printed beside the run's
    own. The run must have kept the trajectories (tracking.keep_trajectories) and the checkpoint of
    the version before (checkpoints.keep_every = 1 keeps all).

    Args:
        run: Folder of the run.
        iteration: Its number, from 1.
        tokens: Keys of algorithm and train with their values.
        nonfinite: Do the work again whose result was NaN or infinite, from its inputs, which every
            run keeps, and say which module began it; model.dtype may be another.
    """
    require_run(run)
    overrides = _settings(tokens, "RUN ITERATION")

    from digen_core.reference.replay import nonfinite_config, replay_config

    config = (nonfinite_config if nonfinite else replay_config)(run, overrides)

    from deployments.local import failures_in_one_line
    from deployments.views.replay import run_nonfinite, run_replay

    with failures_in_one_line():
        (run_nonfinite if nonfinite else run_replay)(run, iteration - 1, config)
    return 0


def pause(
    run: str,
    /,
    *,
    off: Annotated[bool, Parameter(negative="")] = False,
    runs_dir: Path = Path("runs"),
) -> int:
    """Let a run finish the iterations that have begun, and wait; it keeps its workers.

    Example: digen pause runs/shapes-20260101-120000
    Example: digen pause runs/shapes-20260101-120000 --off

    Args:
        run: Name or folder of a run that is being trained.
        off: Let it continue.
        runs_dir: Folder of the runs.
    """
    from digen_core.checkpoints.manifest import read_lineage
    from digen_core.checkpoints.run_state import find_run

    folder = find_run(run, runs_dir)
    lineage = read_lineage(folder)
    if lineage is None or not lineage.flow_run_ids:
        raise UserError(f"{folder} is not being trained; 'digen ls' lists what is")

    from deployments import local

    local.pause_run(folder, lineage.flow_run_ids[-1], off)
    sys.stdout.write("it goes on\n" if off else "it pauses when its iteration is over\n")
    return 0


def cancel(run: str, /, *, runs_dir: Path = Path("runs")) -> int:
    """End a run that is being trained, in order; it can be resumed.

    Example: digen cancel runs/shapes-20260101-120000

    A run on this machine gets what Ctrl-C sends. For one elsewhere Prefect is told, whose address
    PREFECT_API_URL has to name.

    Args:
        run: Its name, or its folder.
        runs_dir: Folder of the runs.
    """
    from digen_core.checkpoints.run_state import find_run

    folder = find_run(run, runs_dir)

    from deployments.operation.cancelling import cancel_run

    ended = cancel_run(folder)
    how = "nothing is left to do"
    if ended.state != "finished":
        how = f"resume it with: digen train --resume {quote(str(folder))}"
    sys.stdout.write(f"{folder.name} ended after {number_of(ended.num_done, 'iteration')}; {how}\n")
    return 0


def ls(
    runs_dir: Path = Path("runs"), /, *, json: Annotated[bool, Parameter(negative="")] = False
) -> int:
    """List the runs of a folder: when they began, whether they run, and how far and good they are.

    Example: digen ls
    Example: digen ls runs --json

    A run is running, finished, or stopped: then it can be resumed. After ± stands the standard
    error.

    Args:
        runs_dir: Folder of the runs.
        json: Print JSON, an object for each run.
    """
    from digen_core.checkpoints.run_state import runs_in, state_of

    if not runs_dir.is_dir():
        raise UserError(f"there is no folder {runs_dir}; runs are in tracking.runs_dir of a config")
    runs = [state_of(folder) for folder in runs_in(runs_dir)]

    from deployments.views.run_list import as_json, print_runs

    if json:
        sys.stdout.write(as_json(runs) + "\n")
    elif runs:
        print_runs(runs)
    else:
        sys.stdout.write(f"{runs_dir} holds no runs yet; for example: digen train shapes\n")
    return 0


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
    require_run(run)

    from deployments.views.report import print_report, write_report
    from digen_core.transport.files import inside

    print_report(write_report(run, out or inside(run, "report"), every))
    return 0


def explain(run: Path, /, *what: str, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Tell what a run waits for, or the story of a fragment, pack, version or device.

    Example: digen explain runs/shapes-20260101-120000
    Example: digen explain runs/shapes-20260101-120000 i5 g3 f1
    Example: digen explain runs/shapes-20260101-120000 rollout-0 --json

    It reads what the run's controller heard and said in its last iterations (RUN/events.jsonl): a
    run that is being trained is asked for it, others wrote it when they ended. A new controller is
    given the same, and has to say the same.

    Args:
        run: Folder of the run.
        what: Iteration (i5, from 1), group and fragment (g3 f1), pack (p7), version (v2), or the
            name of a device; several together say which one. Default: what waits for what now.
        json: Print JSON.
    """
    require_run(run)

    from deployments.views.explain import print_now, print_story

    if what:
        print_story(run, what, as_json=json)
    else:
        print_now(run, as_json=json)
    return 0


def _warn(text: str) -> None:
    sys.stderr.write(f"digen: warning: {printable(redacted(text))}\n")
