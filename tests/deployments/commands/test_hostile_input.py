"""Input that no honest user writes: one line in seconds, whatever it is, and bounded memory."""

import gzip
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.errors import UserError
from digen_core.inputs.reading import shown

DEEP = "[" * 200_000
DIGITS = "9" * 5000
LONG = "a" * 5000
NO_NAME = "File name too long" if sys.version_info < (3, 14) else ""  # of a path that is looked for
LONG_PROMPT = shown(("a red circle " * 5000).strip())
RUN = "runs/r"
ONE = ("--rollout.prompts-per-iteration", "1")
JPEG = ("--rewards", "{jpeg_compressibility=1}")
MOST_MEMORY = 1.5e9  # bytes more than before
BINARY = b"\xff\xfe\x00\x01"

Spoil = Callable[[Path], Any]


def nothing(job: Path) -> None: ...


def write(name: str, content: str | bytes) -> Spoil:
    def spoil(job: Path) -> None:
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        (job / name).write_bytes(data)

    return spoil


def linked(name: str, target: str) -> Spoil:
    def spoil(job: Path) -> None:
        (job / name).unlink(missing_ok=True)
        os.symlink(target, job / name)

    return spoil


def folder(name: str) -> Spoil:
    def spoil(job: Path) -> None:
        (job / name).unlink(missing_ok=True)
        (job / name).mkdir(parents=True)

    return spoil


def pipe(name: str) -> Spoil:
    def spoil(job: Path) -> None:
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(job / name)

    return spoil


def listening(job: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.sock")  # the tests run in the job's folder: its whole name is too long


def sparse(job: Path) -> None:
    with (job / "p.txt").open("wb") as file:
        file.truncate(200 << 30)


def parquet(columns: dict[str, Any] | pa.Table) -> Spoil:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    return lambda job: pq.write_table(table, job / "p.parquet", compression="zstd")


def repeated(text: str, count: int) -> pa.Array:
    """The same text in many rows, which a file stores once."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), count), [text])


def bytes_of_job(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda job: (job / "job.toml").write_bytes(change((job / "job.toml").read_bytes()))


def prompts(path: str, *more: str) -> list[str]:
    return ["train", "job.toml", "--prompts.train", path, *more]


def setting(key: str, value: str) -> list[str]:
    return ["train", "job.toml", f"--{key}", value]


TRAIN = ["train", "job.toml"]
RESUME = ["train", "--resume", RUN]
ROW = '{"prompt": "a red circle", "m": %s}\n'
PATHS = ("model.path", "tracking.runs-dir", "schedule.profile", "prompts.evaluation")
NO_CONFIG = "it has no readable config.json"

FILES: dict[str, tuple[Spoil, list[str], str]] = {
    "deep JSON Lines": (
        write("p.jsonl", DEEP),
        prompts("p.jsonl"),
        "p.jsonl line 1 is not JSON: it nests too deeply",
    ),
    "deep metadata": (
        write("p.jsonl", ROW % ("[" * 800 + "]" * 800)),
        prompts("p.jsonl", *ONE, "--prompts.metadata-columns", "['m']"),
        "has no column 'm'",  # of the evaluation prompts, which are read next
    ),
    "deep TOML": (write("job.toml", f"a={DEEP[:100000]}"), TRAIN, "not valid TOML: it nests too"),
    "tables in tables": (write("job.toml", "a=" + "{a=" * 40000), TRAIN, "it nests too deeply"),
    "a key of many parts": (
        write("job.toml", f"a{'.a' * 50000}=1"),
        TRAIN,
        "job.toml is not valid TOML: a key has more than 64 parts",
    ),
    "large TOML": (
        write("job.toml", "#" * 200_000),
        TRAIN,
        "cannot read the config file job.toml: it has 200000 bytes, more than 131072",
    ),
    "many digits in TOML": (write("job.toml", f"seed={DIGITS}"), TRAIN, "Exceeds the limit"),
    "many hexadecimal digits": (
        write("job.toml", f"seed=0x{'f' * 50000}"),
        TRAIN,
        "job.toml: a number has 200000 binary digits; use at most 128",
    ),
    "many digits in JSON Lines": (
        write("p.jsonl", f'{{"prompt":{DIGITS}}}'),
        prompts("p.jsonl"),
        "p.jsonl line 1 is not JSON: Exceeds the limit",
    ),
    "a weight of many digits": (
        write("p.jsonl", ROW % DIGITS[:400]),
        prompts("p.jsonl", "--prompts.weight-column", "m"),
        "p.jsonl line 1: its 'm' is 9999",
    ),
    "weights whose sum is infinite": (
        write("p.jsonl", ROW % "1e308"),
        prompts("p.jsonl", "--prompts.weight-column", "m"),
        "a weight is 0, or from 1e-09 to 1e+09",
    ),
    "weights that a sum loses": (
        write("p.jsonl", ROW % "5e-324"),
        prompts("p.jsonl", "--prompts.weight-column", "m"),
        "its 'm' is 5e-324; a weight is 0, or from",
    ),
    "an endless text": (nothing, prompts("/dev/zero"), "/dev/zero: it is a device, not a file"),
    "endless noise": (nothing, prompts("/dev/urandom"), "/dev/urandom: it is a device, not a"),
    "an endless table": (linked("p.csv", "/dev/zero"), prompts("p.csv"), "p.csv: it is a device"),
    "an endless Parquet file": (
        linked("p.parquet", "/dev/zero"),
        prompts("p.parquet"),
        "p.parquet: it is a device",
    ),
    "an endless config": (linked("x.toml", "/dev/zero"), ["train", "x.toml"], "it is a device"),
    "an endless profile": (nothing, setting("schedule.profile", "/dev/zero"), "it is a device"),
    "an endless model index": (
        linked("model/model_index.json", "/dev/zero"),
        TRAIN,
        "model/model_index.json: it is a device",
    ),
    "endless settings of a part": (
        linked("model/vae/config.json", "/dev/zero"),
        TRAIN,
        "model/vae/config.json: it is a device",
    ),
    "a file of no limits": (sparse, prompts("p.txt"), "p.txt: it has 214748364800 bytes, more"),
    "a pipe": (pipe("p.txt"), prompts("p.txt"), "p.txt: it is a pipe, not a file"),
    "a pipe in a folder": (pipe("d/a.parquet"), prompts("d"), "d/a.parquet: it is a pipe"),
    "a config from a pipe": (pipe("x.toml"), ["train", "x.toml"], "x.toml: it is a pipe"),
    "a profile from a pipe": (pipe("x.json"), setting("schedule.profile", "x.json"), "it is a pi"),
    "weights from a pipe": (pipe("model/vae/a.safetensors"), TRAIN, "it is a pipe, not a file"),
    "a run's config from a pipe": (pipe(f"{RUN}/config.json"), RESUME, "it is a pipe, not a"),
    "a socket": (listening, prompts("s.sock"), "s.sock: it is a socket, not a file"),
    "a loop of links": (linked("p.txt", "p.txt"), prompts("p.txt"), "Too many levels of symbol"),
    "a config that is a loop": (linked("x.toml", "x.toml"), ["train", "x.toml"], "x.toml"),
    "a folder of runs that is a loop": (
        linked("m", "m"),
        setting("tracking.runs-dir", "m"),
        "tracking.runs_dir is m, but the link m leads nowhere",
    ),
    "a folder for a file": (
        folder("p.parquet"),
        prompts("p*.parquet"),
        "cannot read the prompt file p.parquet: it is a folder, not a file",
    ),
    "a folder for a part's settings": (
        folder("model/vae/config.json"),
        TRAIN,
        "model/vae/config.json: it is a folder, not a file; copy or download it again",
    ),
    "a data set without splits": (
        write("d/dataset_dict.json", "{}"),
        prompts("d"),
        "cannot read the dataset folder d: it has a dataset_dict.json, but no folder of a split",
    ),
    "a deep state of a data set": (write("d/state.json", DEEP), prompts("d"), "nests too deeply"),
    "a state that is a list": (write("d/state.json", "[]"), prompts("d"), "it holds [], not an"),
    "a data set of a device": (
        write("d/state.json", '{"_data_files": [{"filename": "/dev/zero"}]}'),
        prompts("d"),
        "/dev/zero: it is a device, not a file",
    ),
    "many rows": (
        parquet({"prompt": repeated("a red circle", 3_000_000)}),
        prompts("p.parquet"),
        "p.parquet holds more than 2000000 rows or 268435456 bytes of prompts",
    ),
    "large cells, stored once": (
        parquet({"prompt": repeated("a" * 90_000, 100_000)}),
        prompts("p.parquet"),
        "p.parquet holds more than 2000000 rows or 268435456 bytes of prompts",
    ),
    "a column twice": (
        parquet(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["prompt", "prompt"])),
        prompts("p.parquet"),
        "cannot read the prompt file p.parquet: ",
    ),
    "bytes as text": (
        parquet({"prompt": pa.array([b"\xff"]).view(pa.string())}),
        prompts("p.parquet"),
        "cannot read the prompt file p.parquet: In column 0: Invalid: Invalid UTF8",
    ),
    "Parquet by its ends only": (
        write("p.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1"),
        prompts("p.parquet"),
        "cannot read the prompt file p.parquet: ",
    ),
    "very many columns": (
        write("p.csv", ",".join(f"c{i}" for i in range(100_000))),
        prompts("p.csv"),
        "p.csv has the columns more than 10000",
    ),
    "a column twice in CSV": (
        write("p.csv", "prompt,prompt\na,b\n"),
        prompts("p.csv"),
        "p.csv has the columns prompt twice",
    ),
    "very many keys": (
        write("p.jsonl", json.dumps({f"c{i}": 1 for i in range(100_000)})),
        prompts("p.jsonl"),
        "c19 and 99980 more",
    ),
    "a key twice": (
        write("p.jsonl", '{"prompt": "a red circle", "prompt": "a blue square"}'),
        prompts("p.jsonl"),
        "p.jsonl line 1 is not JSON: an object has the key 'prompt' twice",
    ),
    "half a character": (
        write("p.jsonl", '{"prompt": "a \\ud800 circle"}'),
        prompts("p.jsonl", *JPEG),
        "p.jsonl line 1 is no prompt: its 'prompt' is 'a \\ud800 circle'",
    ),
    "half a character in metadata": (
        write("p.jsonl", ROW % '"\\ud800"'),
        prompts("p.jsonl", "--prompts.metadata-columns", "['m']"),
        "its 'm' is '\\ud800', which JSON cannot hold",
    ),
    "NaN in metadata": (
        write("p.jsonl", ROW % "NaN"),
        prompts("p.jsonl", "--prompts.metadata-columns", "['m']"),
        "its 'm' is nan, which JSON cannot hold",
    ),
    "NUL in a prompt": (
        write("p.jsonl", '{"prompt": "a \\u0000 circle"}'),
        prompts("p.jsonl", *JPEG),
        "without NUL and halves of characters",
    ),
    "an endless prompt": (
        write("p.txt", "a" * 1_000_000),
        prompts("p.txt", *JPEG),
        "write a text of at most 100000 characters",
    ),
    "UTF-16": (
        write("p.txt", "a red circle\n".encode("utf-16")),
        prompts("p.txt"),
        "in position 0: invalid start byte; save it as UTF-8",
    ),
    "a compressed text": (
        write("p.jsonl", gzip.compress(b'{"prompt": "a red circle"}')),
        prompts("p.jsonl"),
        "in position 1: invalid start byte; it is compressed by gzip, unpack it",
    ),
    "another encoding": (
        write("p.txt", "a caf\u00e9\n".encode("latin-1")),
        prompts("p.txt"),
        "invalid continuation byte; it has to be text in UTF-8",
    ),
    "a table without a header": (
        write("p.csv", ""),
        prompts("p.csv"),
        "p.csv has no column 'prompt', which the config's [prompts] names; it has none",
    ),
    "a long prompt that a reward refuses": (
        write("p.txt", "a red circle " * 5000),
        prompts("p.txt", *ONE),
        f"prompt {LONG_PROMPT} is outside the shapes world; it knows",
    ),
    "a long prompt that is trained on and judged by": (
        write("p.txt", "a red circle " * 5000),
        prompts("p.txt", *JPEG, *ONE, "--prompts.evaluation", "p.txt"),
        f"1 of 1 evaluation prompts are trained on, the first being {LONG_PROMPT}; keep them in",
    ),
    "UTF-16 without its mark": (
        write("p.txt", "a red circle\n".encode("utf-16-le")),
        prompts("p.txt", *JPEG),
        "without NUL",
    ),
    "a key in quotes": (
        write("job.toml", '"rollout.group_size" = 4'),
        TRAIN,
        "unknown key rollout.group_size: a key in quotes is one name, with its dots; leave the",
    ),
    "a key in quotes in its table": (
        write("job.toml", '[train]\n"lora.rank" = 4'),
        TRAIN,
        "unknown key train.lora.rank: a key in quotes is one name, with its dots; leave the quotes",
    ),
    "a config in UTF-16": (
        bytes_of_job(lambda text: text.decode().encode("utf-16")),
        TRAIN,
        "job.toml is not valid TOML: 'utf-8' codec",
    ),
    "lines that end as on old Macs": (
        bytes_of_job(lambda text: text.replace(b"\n", b"\r")),
        TRAIN,
        "job.toml is not valid TOML",
    ),
    "half a tokenizer": (write("model/tokenizer/tokenizer.json", '{"a":'), TRAIN, "tokenizer.js"),
    "half the settings of a tokenizer": (
        write("model/tokenizer/tokenizer_config.json", '{"a":'),
        TRAIN,
        "model/tokenizer/tokenizer_config.json: Expecting value: line 1 column 6 (char 5); copy or",
    ),
    "an empty map of tokens": (
        write("model/tokenizer/special_tokens_map.json", ""),
        TRAIN,
        "special_tokens_map.json: Expecting value",
    ),
    "half a SentencePiece vocabulary": (
        write("model/tokenizer/spiece.model", BINARY),
        TRAIN,
        "model/tokenizer/spiece.model is no whole SentencePiece vocabulary; copy or download it",
    ),
    "half a scheduler": (
        write("model/scheduler/scheduler_config.json", '{"a":'),
        TRAIN,
        "scheduler_config.json: Expecting value",
    ),
    "a scheduler that is a list": (
        write("model/scheduler/scheduler_config.json", "[]"),
        TRAIN,
        "scheduler_config.json: it holds [], not an object; copy or download it again",
    ),
    "a scheduler that is missing": (
        lambda job: (job / "model/scheduler/scheduler_config.json").rename(
            job / "model/scheduler/x.json"
        ),
        TRAIN,
        "model.path model lacks scheduler/scheduler_config.json",
    ),
    "parts outside the model": (
        write("model/model_index.json", '{"_class_name": "FluxPipeline", "../..": ["a", "b"]}'),
        TRAIN,
        "has a model_index.json with the part '../..', which is no name of a subfolder",
    ),
    "a deep model index": (write("model/model_index.json", DEEP), TRAIN, "it nests too deeply"),
    "a deep profile": (
        write("x.json", DEEP),
        setting("schedule.profile", "x.json"),
        "x.json is no profile of a run",
    ),
    "a run's binary config": (write(f"{RUN}/config.json", BINARY), RESUME, NO_CONFIG),
    "a run's config that is a list": (write(f"{RUN}/config.json", "[]"), RESUME, NO_CONFIG),
    "a run's config that is null": (write(f"{RUN}/config.json", "null"), RESUME, NO_CONFIG),
    "a run's deep config": (write(f"{RUN}/config.json", DEEP[:90_000]), RESUME, NO_CONFIG),
    "a list with settings over it": (
        write(f"{RUN}/config.json", "[]"),
        [*RESUME, "--seed", "1"],
        NO_CONFIG,
    ),
    "replaying null": (write(f"{RUN}/config.json", "null"), ["replay", RUN, "0"], NO_CONFIG),
    "comparing lists": (write(f"{RUN}/config.json", "[]"), ["compare", RUN, RUN], NO_CONFIG),
    "a run's deep lineage": (write(f"{RUN}/lineage.json", DEEP), ["pause", RUN], "too deeply"),
    "a deep cluster": (
        write("c.toml", f"a={DEEP[:90_000]}"),
        ["plan", "job.toml", "--cluster", "c.toml"],
        "c.toml is not valid TOML: it nests too deeply",
    ),
    "a cluster without end": (
        write("c.toml", '[[devices]]\nkind = "a"\ncount = 1000000000000'),
        ["plan", "job.toml", "--cluster", "c.toml"],
        "devices.0.count: must be at most 16384: each device is planned for by itself",
    ),
    "a deep scenario": (
        write("c.toml", f"a={DEEP[:90_000]}"),
        ["simulate", "c.toml"],
        "c.toml is not valid TOML: it nests too deeply",
    ),
    "a reward module that exits": (
        write("leaves.py", "import sys\nsys.exit(0)\n"),
        setting("rewards.leaves:f", "1"),
        "rewards: importing 'leaves:f' raised SystemExit: 0",
    ),
    "a reward that exits": (
        write("stops.py", "def f(images, prompts):\n    raise SystemExit(3)\n"),
        setting("rewards.stops:f", "1"),
        "reward 'stops:f' raised SystemExit: 3",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_hostile_file_is_refused(case, job, refused):
    spoil, arguments, message = FILES[case]
    spoil(job)
    before = psutil.Process().memory_info().rss
    line = refused(arguments)
    assert message in line
    assert len(line) < 1000
    assert psutil.Process().memory_info().rss - before < MOST_MEMORY


SETTINGS = {
    "digits": (setting("seed", DIGITS), "seed: Unable to parse input string as an integer"),
    "hexadecimal digits": (setting("seed", "0x" + "f" * 5000), "has 20000 binary digits"),
    "depth": (setting("train.lora.targets", DEEP), "a text has 200000 characters; use at most"),
    "a short depth": (
        setting("train.lora.targets", "[" * 99 + "]" * 99),
        "tables and lists nest more than 20 deep",
    ),
    "NUL in an argument": (["train", "a\0b.toml"], "the argument 'a\\x00b.toml' holds a NUL"),
    "half a character": (
        setting("tracking.experiment", "a\udcff"),
        "the text 'a\\udcff' holds NUL or half a character (a surrogate)",
    ),
    "a config's endless name": (["train", LONG], NO_NAME or "there is no config aaa"),
    "a config's endless file": (["config", "show", f"{LONG}.toml"], "File name too long"),
    "an endless run": (["train", "--resume", LONG], NO_NAME or "there is no run folder aaa"),
    "an endless run to evaluate": (["evaluate", LONG], NO_NAME or "there is no run folder aaa"),
    "an endless run to report on": (["report", LONG], NO_NAME or "there is no run folder aaa"),
    "colours of a terminal": (["train", "a\x1b[31m.toml"], "config file a\\x1b[31m.toml"),
    "no folder of runs": (
        setting("tracking.runs-dir", ""),
        "tracking.runs_dir: must name a folder, such as runs (got '')",
    ),
    "a blank folder of runs": (setting("tracking.runs-dir", "  "), "must name a folder"),
    "runs at an address": (
        setting("tracking.runs-dir", "s3://bucket/runs"),
        "tracking.runs_dir: must be a folder of this machine, not an address",
    ),
    "an unknown kind of MLflow": (
        setting("tracking.mlflow-uri", "gopher://x"),
        "tracking.mlflow_uri begins with 'gopher':, which MLflow does not know; use http(s)://",
    ),
    "a folder of runs with a tilde": (
        setting("tracking.runs-dir", "~/runs"),
        "tracking.runs_dir: must be written out, as no shell reads its ~ (got '~/runs')",
    ),
    "a folder of runs that no address of a database names": (
        setting("tracking.runs-dir", "a?b"),
        "a?b, as ? and % mean something else in its address; use another folder, or set tracking.",
    ),
    "a folder of runs that would be read as another": (
        setting("tracking.runs-dir", "a%20b"),
        "tracking.runs_dir is a%20b, but MLflow's database cannot be in ",
    ),
    "a folder for MLflow": (
        setting("tracking.mlflow-uri", "mlruns"),
        "tracking.mlflow_uri is mlruns, a folder, which MLflow does not take any more; use a data",
    ),
    "a folder for MLflow, as an address": (
        setting("tracking.mlflow-uri", "file:///tmp/mlruns"),
        "tracking.mlflow_uri is file:///tmp/mlruns, a folder, which",
    ),
    "a database of MLflow's that is none": (
        setting("tracking.mlflow-uri", "sqlite:///job.toml"),
        "tracking.mlflow_uri is sqlite:///job.toml, but job.toml is no database of SQLite; name",
    ),
    "a database of MLflow's that is a folder": (
        setting("tracking.mlflow-uri", "sqlite:///model"),
        "cannot read MLflow's database model: it is a folder, not a file",
    ),
    "a database of MLflow's in memory": (
        setting("tracking.mlflow-uri", "sqlite://"),
        "tracking.mlflow_uri is sqlite://, which is no file; use one: sqlite:///runs/mlflow.db",
    ),
    "a database of MLflow's without its driver": (
        setting("tracking.mlflow-uri", "mssql+adodbapi://x/y"),
        "tracking.mlflow_uri is mssql+adodbapi://x/y: ",
    ),
    "half an address of IPv6": (
        setting("tracking.mlflow-uri", "postgresql://[::1/x"),
        "tracking.mlflow_uri is postgresql://[::1/x: Invalid IPv6 URL; correct it",
    ),
    "MLflow on no machine": (setting("tracking.mlflow-uri", "http://"), "names no machine"),
    "an unknown kind of scheduler": (
        setting("cluster.scheduler-address", "http://1.2.3.4:1"),
        "but Dask knows no http://; use tcp:// or tls://",
    ),
    "comparing by an unknown kind of MLflow": (
        ["compare", "a", "b", "--mlflow-uri", "ftp://x"],
        "--mlflow-uri begins with 'ftp':, which MLflow does not know",
    ),
    "prompts at an address": (prompts("https://x.org/p.txt"), "No such file or directory"),
    "a registered model with a slash": (
        setting("tracking.registered-model", "a/b"),
        "tracking.registered_model: must match",
    ),
    "a registered model that is a folder": (
        setting("tracking.registered-model", ".."),
        "tracking.registered_model: must match",
    ),
    "a blank experiment": (setting("tracking.experiment", " "), "tracking.experiment: must match"),
    "a blank name": (setting("name", " "), "name: must match"),
    "a name that is a folder": (setting("name", ".."), "name: must match"),
    "a function that prints": (
        setting("rewards.builtins:print", "1"),
        "rewards: 'builtins:print' is of Python's own library, which has no rewards",
    ),
    "a function that opens": (setting("rewards.builtins:open", "1"), "is of Python's own library"),
    "iterations without end": (
        ["simulate", "B", "--iterations", "1000000000000"],
        "use 2 <= iterations <= 1000, since each is simulated",
    ),
    "a fraction of an update": (
        ["simulate", "D", "--updates", "1.5"],
        "Invalid value for --updates: 1.5 is no integer; give a whole number",
    ),
    "a fraction of a seed": (["bench", "layouts", "D", "--seed", "0.5"], "0.5 is no integer"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_hostile_argument_is_refused(case, refused):
    arguments, message = SETTINGS[case]
    line = refused(arguments)
    assert message in line
    assert len(line) < 1000


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize("path", [LONG, "a/" * 5000, "a" * 256], ids=["long", "deep", "a name"])
def test_a_path_that_no_file_can_have_is_refused(key, path, refused):
    assert f"{key.replace('-', '_')}: no file can be called so" in refused(setting(key, path))


COUNTS = (
    *("num-iterations", "rollout.prompts-per-iteration", "rollout.group-size"),
    *("rollout.num-steps", "rollout.refill", "rollout.steps-per-task", "train.lora.rank"),
    *("train.pack-size", "evaluation.samples-per-prompt", "evaluation.num-steps"),
    *("evaluation.grid-prompts", "model.height", "model.width", "model.num-frames"),
    *("cluster.rollout-workers", "cluster.trainer-workers", "cluster.threads-per-worker"),
    *("cluster.reward-workers.judges", "cluster.rejoin-timeout", "cluster.task-timeout"),
    *("schedule.max-staleness", "schedule.helpers", "schedule.assistants"),
)


@pytest.mark.parametrize("key", COUNTS)
def test_an_absurd_number_is_refused_with_the_reason(key, refused):
    line = refused(setting(key, "1000000000000"))
    _, _, rule = line.partition(f"{key.replace('-', '_')}: must be at most ")
    bound, _, reason = rule.partition(": ")
    assert bound.isdecimal()
    assert len(reason.split()) > 3


@pytest.mark.parametrize("content", ["[]", "null", "{", BINARY, DEEP[:90_000]])
def test_a_run_to_evaluate_whose_config_is_none_is_refused(content, tmp_path):
    write("config.json", content)(tmp_path)
    with pytest.raises(UserError, match=r"it has no readable config\.json"):
        judged_config(tmp_path, Judging())


def test_numbers_whose_product_is_absurd_are_refused(refused):
    line = refused([*setting("rollout.group-size", "65536"), "--rollout.num-steps", "1000"])
    assert "is 131072000 denoising steps an iteration; use at most 16777216: all of them" in line
    line = refused(setting("model.sizes", "[[8192,8192,1]]"))
    assert "model.sizes[0] is [8192, 8192, 1], a sample of 262144 tokens; use at most" in line


@pytest.mark.parametrize(
    "change",
    [lambda text: b"\xef\xbb\xbf" + text, lambda text: text.replace(b"\n", b"\r\n")],
    ids=["a byte order mark", "lines that end as on Windows"],
)
def test_files_of_windows_are_taken(change, job, local, monkeypatch):
    from deployments.cli import run

    monkeypatch.setattr("digen_core.preflight.reward_probe.probe_before_start", lambda *_: None)
    for name in ("job.toml", "train.txt", "evaluation.txt"):
        (job / name).write_bytes(change((job / name).read_bytes()))
    assert run(TRAIN) == 0
    assert len(local.calls) == 1


def test_a_file_that_may_not_be_read_is_refused(job, refused, monkeypatch):
    """A user who is not root: the system's answer stands in, since tests may run as root."""

    def denied(path, *_arguments, **_named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("digen_core.inputs.reading.os.open", denied)
    assert refused(TRAIN) == "cannot read the config file job.toml: Permission denied"


def test_a_folder_that_may_not_be_entered_is_refused(job, refused, monkeypatch):
    is_dir = Path.is_dir

    def denied(path):
        if path.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", denied)
    assert refused(["evaluate", "runs/secret"]) == "cannot use 'runs/secret': Permission denied"
