"""What the commands print, and what they do with mistakes and failures."""

import io

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from rich.console import Console

from deployments.cli import run
from deployments.errors import RunFailedError
from deployments.local import failures_in_one_line
from deployments.views.summary import print_run
from digen_core.checkpoints.judging import Judging
from digen_core.checkpoints.manifest import Lineage
from digen_core.config.load import load_config
from digen_core.preflight.model import explain_load_error
from digen_core.records import EvaluationReport, RunReport
from flows.reopen import locked


def test_the_unspoilt_job_runs(job, local, capsys):
    assert run(["train", "job.toml"]) == 0
    assert local.calls == [load_config("job.toml")]
    words = capsys.readouterr().out.split()
    assert [w for w in words if w != "│"][10:14] == ["reward", "0.500", "0.750", "+0.250"] or (
        "+0.250" in words
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian job.toml", 'Unknown command "trian". Did you mean "train"?'),
        ("config shwo", 'Unknown command "shwo". Did you mean "show"?'),
        ("train", "which config? For example: digen train shapes"),
        ("train --seed 1", "which config?"),
        ("bench overhead", "which config? For example: digen bench overhead"),
        ("bench overhead job.toml --iterations 0", "--iterations is 0; use 1 or more"),
        ("bench overhead job.toml --iterations x", "Invalid value for --iterations"),
        ("bench packs", "which config? For example: digen bench packs"),
        ("size shapes --json --markdown", "--json and --markdown are two forms of the table; give"),
        ("pause no-such-run", "runs/no-such-run"),
        ("bench packs job.toml --rounds 0", "--rounds is 0; use 1 or more"),
        ("bench learning", "which config? For example: digen bench learning"),
        ("bench learning job.toml --layout tps", "there is no layout tps"),
        ("bench learning job.toml --metric hps/score", "--metric is hps/score; use reward, or"),
        ("bench algorithms job.toml --only ppo", "--only names 'ppo'; use some of 'flow_grpo',"),
        (
            "bench algorithms job.toml --only ddpo --rollout.num-steps 4 --algorithm.window null",
            "ddpo does not fit the config: algorithm.window (size, low, high) is",
        ),
        ("bench learning job.toml --seeds 0 -1", "--seeds is [0, -1]; use numbers from 0, below"),
        ("bench algorithms job.toml --seeds -1", "--seeds is [-1]; use numbers from 0, below 2^63"),
        ("bench algorithms job.toml --metric hps/score", "--metric is hps/score; use reward, or"),
        ("bench tracking --rounds 0", "--rounds is 0, --iterations 6 and --step-seconds 0.1; use"),
        ("bench controller --devices 64 1", "--devices names 1; use 2 or more"),
        ("bench controller --layout tps", "there is no layout tps; did you mean tsp?"),
        ("chaos chaos --first -1", "--first -1; use stories and jobs of 1 or more, seed and first"),
        ("bench gang --members 2 1", "--members is [2, 1]; use 2 to 64"),
        ("bench stages", "which config? For example: digen bench stages"),
        ("bench stages shapes --latency -1", "--latency is -1.0; use 0 to 10 seconds"),
        ("bench stages shapes --codecs int9", "--codecs names 'int9'; use none, bf16, int8,"),
        ("bench gang --members 4 2 --hosts 3", "--hosts is 3; use 1 to the fewest members"),
        ("bench push --rounds 0", "--rounds is 0; use 1 or more"),
        ("bench push --megabytes 0", "--megabytes is 0; use 1 to 10000"),
        ("bench push --learning-rate 1e-5 0", "--learning-rate is [1e-05, 0.0]; use numbers above"),
        ("bench runner --rounds 0", "--num-tasks is 60 and --rounds 0; use"),
        ("config show --name a/b", "the command line: name: must match"),
        ("config show job.toml --sed 1", "unknown key sed; did you mean seed?"),
        ("evaluate", 'Command "evaluate" parameter RUN requires an argument'),
        ("evaluate missing", "there is no run folder missing"),
        ("evaluate . --samples-per-prompt 0", "--samples-per-prompt is 0; use 1 or more"),
        ("evaluate . --samples 3", "unknown option --samples; did you mean --samples-per-prompt?"),
        ("evaluate . --train.learning-rate 1", "train.learning_rate cannot be set where a run is"),
        ("evaluate . x.toml", "unexpected argument 'x.toml'"),
        ("evaluate . --prompts no.txt", "cannot read the prompt file no.txt"),
        ("evaluate . --suite genevall", "geneval"),
        ("pretrain shapes --out model", "model exists already; remove it or choose another"),
        ("pretrain shapes --threads 0", "--threads is 0; use 1 or more"),
        ("pretrain shapes --seed -1", "--seed is -1; use 0 <= seed < 2^63"),
        ("make-tiny flux tiny --seed 99999999999999999999", "99999; use 0 <= seed < 2^63"),
        ("pretrain shapes --sed 1", "Unknown option: --sed. Did you mean --seed?"),
        ("pretrain shape", 'Did you mean "shapes"?'),
        ("up --host ::1", "--host is '::1'; use 0.0.0.0, or an IPv4 address or name of this host"),
        ("up --host http://h", "--host is 'http://h'; use 0.0.0.0, or an IPv4 address or name"),
        ("up --host no.invalid", "--host is no.invalid, where this cannot listen ("),
        ("up --host 192.0.2.1", "--host is 192.0.2.1, where this cannot listen (Cannot assign"),
        (f"up --host {'a' * 64}", "where this cannot listen ("),
        ("ls runs more", "unexpected argument 'more'; --help shows what it takes"),
        ("status more", "unexpected argument 'more'; --help shows what it takes"),
        ("help", "there is no command help; use: digen --help"),
        ("--verion", 'Unknown command "--verion"'),
    ],
)
def test_a_bad_command_is_refused(arguments, message, refused):
    assert message in refused(arguments.split())


def test_evaluate_prints_a_table(job, local, capsys):
    assert run(["evaluate", ".", "--samples-per-prompt", "3"]) == 0
    assert local.calls[0][1] == Judging(samples_per_prompt=3)
    assert "shapes/score" in capsys.readouterr().out


def test_evaluate_takes_a_pattern_for_parquet_files(job, local):
    assert run(["evaluate", ".", "--prompts", "data/test-*.parquet"]) == 0
    assert local.calls[0][1] == Judging(prompts="data/test-*.parquet")


def test_a_run_that_fails_is_one_line_and_exit_code_1(job, local, capsys, monkeypatch):
    def fail(config, resume):
        raise RunFailedError("reward 'shapes' returned nan\nfor image 3 of 16")

    monkeypatch.setattr(local, "run_training", fail)
    assert run(["train", "job.toml"]) == 1
    assert capsys.readouterr().err == "digen: reward 'shapes' returned nan for image 3 of 16\n"


def test_a_failure_says_what_was_noted_with_it():
    error = ValueError("odd")
    error.add_note("go on with: x")
    line = "^the run failed: ValueError: odd; go on with: x$"
    with pytest.raises(RunFailedError, match=line), failures_in_one_line():
        raise error


def test_a_run_is_paused_by_its_name_or_folder(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    own = dict.fromkeys(("mlflow_run_id", "prompts_hash", "evaluation_prompts_hash"), "")
    lineage = Lineage(run_id="mine", flow_run_ids=("first", "last"), **own)
    (folder / "lineage.json").write_text(lineage.model_dump_json())
    told = []
    set_state = "deployments.operation.prefect_server.set_state"
    monkeypatch.setattr(set_state, lambda runs, own, state, before: told.append((own, before)))
    monkeypatch.chdir(tmp_path)
    assert run(["pause", "mine"]) == 2  # its process was killed, though Prefect shows it as running
    assert "runs/mine is not being trained; 'digen ls' lists what is" in capsys.readouterr().err
    with locked(folder):
        assert run(["pause", "mine"]) == 0
    assert run(["pause", "runs/mine", "--off"]) == 0
    assert told == [("last", "running"), ("last", "paused")]
    assert "it goes on" in capsys.readouterr().out


def test_a_summary_says_if_nothing_was_learnt_and_how_long_it_took():
    rewards = EvaluationReport(version=0, num_prompts=1, num_samples=8, rewards={"reward": 0.5})
    report = RunReport(
        run_id="shapes-1",
        run_dir="runs/shapes-1",
        version=0,
        num_iterations=3,
        seconds=61.7,
        before=rewards,
        after=rewards,
        view="mlflow ui",
    )

    def lines_of(own, seconds=90.2):
        console = Console(file=io.StringIO(), width=200)
        print_run(own, seconds, console)
        return console.file.getvalue().splitlines()

    why = "no iteration made an update: each group's rewards were equal, or a number was missing"
    assert why in lines_of(report)
    lines = lines_of(report.model_copy(update={"version": 3}))
    assert not any("no iteration" in line for line in lines)
    assert (
        sum("1 min 30 s in all, 1 min 2 s of them with the workers" in line for line in lines) == 1
    )
    (line,) = (line for line in lines_of(report, 180_000) if "in all" in line)
    assert "evaluation, 50 h 0 min in all" in line
    # A server of the command's own ends with it; what shows its runs is said. Others go on.
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert lines_of(report)[-1] == "Prefect     digen up --no-workers"
    with temporary_settings({PREFECT_API_URL: "http://me:secret@10.0.0.7:4200/api"}):
        assert lines_of(report)[-1] == "Prefect     http://***@10.0.0.7:4200"


def test_a_run_that_is_stopped_says_so(job, local, capsys, monkeypatch):
    def stop(config, resume):
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "run_training", stop)
    assert run(["train", "job.toml"]) == 130
    assert capsys.readouterr().err == "digen: stopped\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--help",
        "train --help",
        "evaluate --help",
        "pretrain shapes --help",
        "make-tiny --help",
        "convert-hps --help",
        "size --help",
        "config show --help",
        "bench runner --help",
        "bench overhead --help",
    ],
)
def test_help_shows_an_example(arguments, capsys):
    assert run(arguments.split()) == 0
    out = capsys.readouterr().out
    assert "digen" in out
    assert arguments in ("", "--help") or f"Example: digen {arguments[:-7]}" in out


def test_help_fills_the_width_and_has_no_options_that_empty_lists(capsys):
    assert run(["cancel", "--help"]) == 0
    whole = "Prefect is told,\nwhose address PREFECT_API_URL has to name.\n"  # 80 columns
    assert whole in capsys.readouterr().out
    assert run(["make-tiny", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "tiny, to see that something works; medium, 10 to 50 million parameters" in out
    for command in ("up", "init"):
        assert run([command, "--help"]) == 0
        assert "--empty" not in capsys.readouterr().out


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip()


def error_of(kind, text, cause=None):
    """Return an error of a class with this name, raised from ``cause``."""
    error = type(kind, (OSError,), {})(text)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (error_of("HFValidationError", "Repo id must"), "is neither a folder nor a hub id"),
        (error_of("GatedRepoError", "403"), "is gated: accept its licence"),
        (error_of("RevisionNotFoundError", "404"), "has no revision 'v9'; correct the revision"),
        (error_of("RepositoryNotFoundError", "404"), "no folder here and no model on the hub"),
        (
            error_of("OSError", "config.json", error_of("OfflineModeIsEnabled", "offline")),
            "not in the hub's cache, and the hub cannot be reached; download the model first",
        ),
        (
            OSError("org/name does not appear to have a file named config.json."),
            "not in the hub's cache",
        ),
        (ValueError("two\nlines"), "model.path org/name cannot be loaded: two lines"),
    ],
)
def test_a_load_error_becomes_one_line(error, message):
    config = load_config(None, {"model.path": "org/name", "model.revision": "v9"})
    line = explain_load_error(config.model, error)
    assert message in line
    assert "\n" not in line
