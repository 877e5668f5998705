"""What digen reads that others may have written or damaged, with documents that are well."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from deployments.shipped import shipped_configs
from digen_core.checkpoints.run_state import state_of
from digen_core.checkpoints.tensors import read_checkpoint, write_checkpoint
from digen_core.config.load import CONFIG_OF_RUN, config_of_run, load_config
from digen_core.config.rewards.judge_template import load_pair_template, load_template
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.data.prompts import train_prompts
from digen_core.errors import UserError
from digen_core.eventlog.file import EVENTS_OF_RUN, read_log, write_log
from digen_core.maths.statistics import Share
from digen_core.planning.clusters.cluster import load_cluster
from digen_core.planning.profile import PROFILE_OF_RUN, load_profile
from digen_core.records import EvaluationReport, IterationRecord, Span, Wins
from digen_core.rewards.judge.answers import preference_in, scores_in
from digen_core.rewards.remote_protocol import decode_answer
from digen_core.sim.scenario import load_scenario
from digen_core.trace.prediction import SCHEDULE_OF_RUN, read_prediction
from digen_core.trace.spans import (
    DEVICES_OF_RUN,
    SPANS_OF_RUN,
    read_devices,
    read_spans,
    write_devices,
    write_spans,
)
from digen_core.transport.kept_inputs import KeptInput, keep_input, read_inputs
from digen_core.transport.metrics import METRICS_OF_RUN, write_metrics
from support import checkpoints
from support.judge_servers import says
from support.mutations import damaged_bytes, damaged_json, damaged_toml
from support.paths import ROOT
from support.random_cluster import make_costs
from support.recorded import recorded
from tasks.tracking.spool import RunOfSpool, Spool
from tasks.tracking.versions import VERSIONS_OF_RUN, note_versions

Damage = Callable[[Sequence[bytes]], st.SearchStrategy[bytes]]

JSON: Sequence[Damage] = (damaged_bytes, damaged_json)
TOML: Sequence[Damage] = (damaged_bytes, damaged_toml)
BYTES: Sequence[Damage] = (damaged_bytes,)


@dataclass(frozen=True)
class Reader:
    """Something that reads a file of a folder."""

    file: str
    """Whose place a damaged one takes."""

    read: Callable[[Path], Any]
    """Is given the folder."""

    documents: Callable[[], Sequence[bytes]]
    damage: Sequence[Damage] = BYTES
    errors: tuple[type[Exception], ...] = (UserError,)
    """That it may raise, as its docstring says."""

    @cached_property
    def wells(self) -> Sequence[bytes]:
        """Documents that are well."""
        return self.documents()

    @cached_property
    def damaged(self) -> st.SearchStrategy[bytes]:
        """Damaged documents."""
        return st.one_of(*(damage(self.wells) for damage in self.damage))


def _files(*patterns: str) -> Callable[[], Sequence[bytes]]:
    folder = ROOT / "deployments"
    return lambda: [path.read_bytes() for own in patterns for path in sorted(folder.glob(own))]


def _written(write: Callable[[Path], object], name: str) -> Callable[[], Sequence[bytes]]:
    def documents() -> Sequence[bytes]:
        with TemporaryDirectory() as folder:
            write(Path(folder))
            return [(Path(folder) / name).read_bytes()]

    return documents


def _config() -> RunConfig:
    return load_config(shipped_configs()["shapes_smoke"])


def _config_in(folder: Path) -> RunConfig:
    return load_config(folder / "c.toml")


def _write_config(folder: Path) -> None:
    (folder / CONFIG_OF_RUN).write_text(_config().model_dump_json())


def _run_of(folder: Path) -> Any:
    if not (folder / CONFIG_OF_RUN).exists():
        _write_config(folder)
    return state_of(folder)


def _prompts(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        tree = _config().model_dump()
        tree["prompts"]["train"] = str(folder / name)
        return train_prompts(RunConfig.model_validate(tree))

    return read


def _write_prompts(folder: Path) -> None:
    rows = {"prompt": ["a red circle", "a blue square"], "weight": [1.0, 2.0], "tag": ["x", None]}
    pq.write_table(pa.table(rows), folder / "p.parquet")


def _write_spans(folder: Path) -> None:
    spans = [
        Span(0, "denoise g00", "denoise", "a", 0.5, 1.0, 2.0),
        Span(0, "x", "push", "b", 1, 2, 3),
    ]
    write_spans(folder / SPANS_OF_RUN, 0, spans)


def _write_checkpoint(folder: Path) -> None:
    write_checkpoint(folder, checkpoints.state_of(1), checkpoints.position_of(1))


def _checkpoint_with(file: str) -> Reader:
    def read(folder: Path) -> object:
        with TemporaryDirectory() as beside:
            _write_checkpoint(Path(beside))
            shutil.copy(folder / file, Path(beside) / file)
            return read_checkpoint(Path(beside) / "v0001")

    name = f"v0001/{file.rpartition('/')[2]}"
    return Reader(name, read, _written(_write_checkpoint, name))


def _write_entries(folder: Path) -> None:
    spool = Spool.create(folder, _SPOOLED)
    for number in range(3):
        spool.append(f"k{number}", "metrics", step=number, values={"a": 0.5})


def _spool_of(folder: Path) -> object:
    spool = Spool.open(folder) or Spool.create(folder, _SPOOLED)
    return [list(spool.unsent()), spool.num_unsent, spool.append("k9", "metrics", a=1)]


def _write_input(folder: Path) -> None:
    arrays = {"latents": np.zeros((2, 3), np.float32)}
    keep_input(folder, KeptInput("g00", "denoise", "a latent", 0, 0, 1, {"steps": [0]}, arrays))


def _sent_of(folder: Path) -> object:
    sent = (folder / "tracking" / "sent.json").read_bytes()
    without_entries = _spool_of(folder)  # they are lost, or were never on the disk
    shutil.rmtree(folder / "tracking")
    _write_entries(folder)
    (folder / "tracking" / "sent.json").write_bytes(sent)
    return without_entries, _spool_of(folder)


def _judged(template: str, folder: Path) -> object:
    found = scores_in(
        (folder / "a.json").read_bytes(), load_template(f"digen:judges/{template}.toml")
    )
    assert all(0 <= score <= 1 or name == "answered" for name, score in found.items()), found
    return found


def _preferred(template: str, folder: Path) -> object:
    found = preference_in(
        (folder / "a.json").read_bytes(), load_pair_template(f"digen:judges/{template}.toml")
    )
    assert 0 <= found["first"] <= 1, found
    return found


def _report(version: int) -> bytes:
    own = EvaluationReport(
        version=version,
        num_prompts=2,
        num_samples=4,
        rewards={"a": 0.5},
        by_prompt={"a": [1, None]},
        by_sample={"a": [[1, 1], [None, None]]},
        judged_by={"a": "0"},
        wins={"a": Wins(prompts=Share(1, None), pairs=Share(0.5, None))},
    )
    return own.model_dump_json().encode()


_VBENCH = [
    {"prompt_en": "a bird", "dimension": ["color"]},
    {"prompt_en": "a cat", "dimension": [], "auxiliary_info": {"color": "red"}},
]
_PROMPT_LINES = [{"prompt": "a red circle", "weight": 2.0}, {"prompt": "two squares", "n": [1, {}]}]
_JUDGED = {
    "alignment": "yes",
    "quality": '{"alignment": 5, "coherence": 3.5, "detail": 1, "beauty": 2}',
    "pointwise": "Final Score: 4.5",
}
_SPOOLED = RunOfSpool(uri="sqlite:///a.db", experiment_id="1", mlflow_run_id="2", name="n")
_TWO = Device("b", frozenset({"rollout", "trainer"}), "H100")

READERS = {
    "config": Reader(
        "c.toml", lambda at: load_config(at / "c.toml"), _files("configs/*.toml"), TOML
    ),
    "recipe": Reader(
        "c.toml", lambda at: load_config(at / "c.toml"), _files("configs/recipes/*.toml"), TOML
    ),
    "config of a run": Reader(
        CONFIG_OF_RUN, config_of_run, _written(_write_config, CONFIG_OF_RUN), JSON
    ),
    "cluster": Reader(
        "c.toml", lambda at: load_cluster(at / "c.toml"), _files("clusters/*.toml"), TOML
    ),
    "scenario": Reader(
        "s.toml", lambda at: load_scenario(at / "s.toml"), _files("scenarios/*.toml"), TOML
    ),
    "prompts, text": Reader("p.txt", _prompts("p.txt"), _files("prompts/shapes_*.txt")),
    "prompts, JSON Lines": Reader(
        "p.jsonl",
        _prompts("p.jsonl"),
        lambda: ["\n".join(json.dumps(line) for line in _PROMPT_LINES).encode()],
    ),
    "prompts, Parquet": Reader(
        "p.parquet", _prompts("p.parquet"), _written(_write_prompts, "p.parquet")
    ),
    "prompts, a JSON list": Reader(
        "p.json", _prompts("p.json"), lambda: [json.dumps(_VBENCH).encode(), b'["a", "b"]'], JSON
    ),
    "prompts, tabs": Reader(
        "p.tsv", _prompts("p.tsv"), lambda: [b"Prompt\tCategory\tChallenge\na\tb\tc\n"]
    ),
    "prompts, rows of an item": Reader(
        "p.csv", _prompts("p.csv"), lambda: [b"item_id,text,proposition_id\n7,a cat,1\n7,a cat,2\n"]
    ),
    "event log": Reader(
        EVENTS_OF_RUN,
        read_log,
        _written(lambda at: write_log(at, recorded(most=40).log("r", "")), EVENTS_OF_RUN),
    ),
    "profile": Reader(
        PROFILE_OF_RUN,
        lambda at: load_profile(at / PROFILE_OF_RUN),
        lambda: [make_costs(0.5).model_dump_json().encode()],
        JSON,
    ),
    "prediction": Reader(
        SCHEDULE_OF_RUN,
        read_prediction,
        lambda: [b'{"layout": "gap", "predicted_seconds": 1.5}'],
        JSON,
        (ValueError, OSError),
    ),
    "spans": Reader(
        f"{SPANS_OF_RUN}/iteration-000000.parquet",
        lambda at: read_spans(at / SPANS_OF_RUN),
        _written(_write_spans, f"{SPANS_OF_RUN}/iteration-000000.parquet"),
        errors=(ValueError, OSError),
    ),
    "devices": Reader(
        DEVICES_OF_RUN,
        lambda at: read_devices(at / DEVICES_OF_RUN),
        _written(lambda at: write_devices(at / DEVICES_OF_RUN, [_TWO]), DEVICES_OF_RUN),
        errors=(ValueError, OSError),
    ),
    "metrics in the state of a run": Reader(
        f"{METRICS_OF_RUN}/iteration-000000.json",
        _run_of,
        _written(
            lambda at: write_metrics(at / METRICS_OF_RUN, IterationRecord(0, 1, 1.5, {"a": 0.5})),
            f"{METRICS_OF_RUN}/iteration-000000.json",
        ),
        JSON,
        (),
    ),
    "evaluations in the state of a run": Reader(
        "evaluation/after.json", _run_of, lambda: [_report(3)], JSON, ()
    ),
    "lock in the state of a run": Reader(".lock", _run_of, lambda: [b"12345 on a-host"], errors=()),
    "checkpoint, manifest": _checkpoint_with("v0001/manifest.json"),
    "checkpoint, tensors": _checkpoint_with("v0001/state.safetensors"),
    "versions": Reader(
        VERSIONS_OF_RUN,
        lambda at: note_versions(at, {2: "c"}),
        lambda: [b'{"version": 1, "hash": "b", "parent": "a"}\n'],
        errors=(),
    ),
    "tracking, entries": Reader(
        "tracking/entries.jsonl",
        _spool_of,
        _written(_write_entries, "tracking/entries.jsonl"),
        errors=(),
    ),
    "tracking, run": Reader(
        "tracking/run.json", _spool_of, lambda: [_SPOOLED.model_dump_json().encode()], JSON, ()
    ),
    "tracking, sent": Reader(
        "tracking/sent.json", _sent_of, lambda: [b'{"num_entries": 0, "num_bytes": 0}'], JSON, ()
    ),
    "kept input": Reader(
        "nonfinite/i000000-g00.safetensors",
        lambda at: read_inputs(at, 0),
        _written(_write_input, "nonfinite/i000000-g00.safetensors"),
    ),
    "answer of a reward": Reader(
        "a.json",
        lambda at: decode_answer((at / "a.json").read_bytes(), 2),
        lambda: [b'{"score": [1.0, 2], "other": [0.5, NaN]}'],
        JSON,
        (ValueError,),
    ),
    "template of a judge": Reader(
        "j.toml",
        lambda at: load_template(str(at / "j.toml")),
        _files("judges/[!p]*.toml", "judges/pointwise.toml"),
        TOML,
    ),
    "template of a judge of pairs": Reader(
        "j.toml",
        lambda at: load_pair_template(str(at / "j.toml")),
        _files("judges/pairwise*.toml"),
        TOML,
    ),
    **{
        f"answer about a pair, {name}": Reader(
            "a.json",
            partial(_preferred, name),
            lambda text=text: [json.dumps(says(text, A=0.5, b=0.25)).encode()],
            JSON,
            (ValueError,),
        )
        for name, text in {"pairwise": "A", "pairwise_verdict": "So Image 2 is better."}.items()
    },
    **{
        f"answer of a judge, {name}": Reader(
            "a.json",
            partial(_judged, name),
            lambda text=text: [json.dumps(says(text, yes=0.5, No=0.25)).encode()],
            JSON,
            (ValueError,),
        )
        for name, text in _JUDGED.items()
    },
}
