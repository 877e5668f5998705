"""``digen export``: what it writes, what it pushes, and what it says when it cannot."""

import base64
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import ModelCard, constants
from PIL import Image
from safetensors.torch import load_file

from deployments.cli import run
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.run import RunConfig
from digen_core.models.trainable import trainable_parameters
from digen_core.records import EvaluationReport
from digen_core.training.train_state import initial_state
from support.checkpoints import names_in, position_of
from support.small_disk import small_disk
from support.tiny_policies import LORA, load_trainable

FILES = ["README.md", "after.png", "before.png", "pytorch_lora_weights.safetensors"]
TOKEN = "hf_ThisIsASecret"


@pytest.fixture
def folder(tiny_flux, tmp_path, monkeypatch):
    """The folder of a run that has ended, seen from the folder that it is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    path = tmp_path / "run-1"
    policy = load_trainable(tiny_flux, "float32")
    weights = {k: v.detach().numpy() for k, v in trainable_parameters(policy).items()}
    model = {"path": "org/base", "height": 32, "width": 32}
    tree = {"model": model, "train": {"lora": LORA.model_dump()}, "rewards": {"ocr": 1.0}}
    config = RunConfig.model_validate(tree)
    path.mkdir()
    state = replace(initial_state(weights), version=1)
    write_checkpoint(path / "checkpoints", state, position_of(3, config))
    for name in ("evaluation", "grids"):
        (path / name).mkdir()
    for version, tag in enumerate(("before", "after")):
        report = EvaluationReport(
            version=version,
            num_prompts=2,
            num_samples=2,
            rewards={"reward": 0.5 + version},
            by_prompt={"reward": [0.25 + version, 0.75 + version]},
        )
        (path / "evaluation" / f"{tag}.json").write_text(report.model_dump_json())
        Image.new("RGB", (8, 8)).save(path / "grids" / f"{tag}.png")
    return path


@pytest.mark.parametrize("target", ["comfyui", "kohya"])
def test_a_program_gets_one_file(target, folder, capsys):
    assert run(["export", "run-1", "--for", target]) == 0
    out = f"run-1/{target}/run-1.safetensors"
    assert capsys.readouterr().out == f"{out} holds the adapter of version 1\n"
    assert names_in(folder / target) == ["run-1.safetensors"]
    assert any(key.endswith(".alpha") for key in load_file(out))


def test_the_hub_gets_a_card(folder):
    assert run(["export", "run-1", "--for", "hub", "--out", "mine"]) == 0
    mine = folder.parent / "mine"
    assert names_in(mine) == FILES
    card = ModelCard.load(mine / "README.md")
    assert card.data.base_model == "org/base"
    assert card.data.pipeline_tag == "text-to-image"
    assert card.data.tags == ["diffusers", "lora", "reinforcement-learning", "digen", "flow_grpo"]
    assert card.data.license is None
    assert "| reward | `0.500 ± 0.250` | `1.500 ± 0.250` | `+1.000 ± 0.000` |" in card.text
    for part in ("| rewards | ocr |", "from_pretrained('org/base')", "(before.png)", "Licence"):
        assert part in card.text
    assert str(folder.parent) not in str(card)


def test_what_a_later_version_was_judged_at_is_not_on_the_card(folder):
    """As where it was killed between checkpoints, or the newest one is damaged."""
    report = folder / "evaluation" / "after.json"
    report.write_text(report.read_text().replace('"version":1', '"version":2'))
    assert run(["export", "run-1", "--for", "hub"]) == 0
    assert names_in(folder / "hub") == [name for name in FILES if name != "after.png"]
    text = ModelCard.load(folder / "hub" / "README.md").text
    assert "version 1 of the policy" in text
    assert "| evaluation | before |" in text
    assert "1.500" not in text


def test_a_card_of_a_model_on_disk_does_not_say_where_it_is(folder, tiny_flux):
    (folder.parent / "org/base").mkdir(parents=True)
    assert run(["export", "run-1", "--for", "hub"]) == 0
    card = ModelCard.load(folder / "hub" / "README.md")
    assert card.data.base_model is None
    assert "org/base" not in str(card)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run-1", "--for requires an argument"),
        ("run-1 --for webui", 'Choose from: "comfyui", "kohya", "hub"'),
        ("run-2 --for hub", "there is no run folder run-2; did you mean"),
        ("run-1 --for kohya --push a/b", "--push pushes what --for hub writes, not --for kohya"),
        ("run-1 --for hub --push model", "--push is 'model'; give a repository on the hub as ORG/"),
        ("run-1 --for hub --push a/b/c", "--push is 'a/b/c'; give a repository"),
        ("run-1 --for hub --out run-1", "run-1 exists already; remove it or choose another folder"),
        ("run-1 --for hub --out file", "file exists already; remove it"),
        ("run-1 --for hub --out file/x", "the folder is file/x, but file is a file"),
        ("run-1 --for hub --out /proc/x", "the folder is /proc/x, but /proc is not writable"),
    ],
)
def test_one_line_says_what_is_wrong(words, said, folder, capsys):
    (folder.parent / "file").touch()
    (folder / "config.json").write_text(RunConfig().model_dump_json())
    before = sorted(folder.parent.rglob("*"))
    assert run(["export", *words.split()]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert sorted(folder.parent.rglob("*")) == before


def test_nothing_is_left_of_an_export_that_fails(folder, capsys):
    (folder / "samples").mkdir()
    (folder / "samples" / "iteration-000000.parquet").write_text("x")
    assert run(["export", "run-1", "--for", "hub"]) == 2
    assert "digen: cannot read the samples of run-1" in capsys.readouterr().err
    assert not any(path.name.startswith((".hub", "hub")) for path in folder.iterdir())


@pytest.mark.parametrize("target", ["comfyui", "hub"])
def test_a_disk_that_is_full(target, folder, capsys):
    with small_disk(4096):
        assert run(["export", "run-1", "--for", target]) == 2
    err = capsys.readouterr().err
    assert f"digen: cannot write run-1/{target}: " in err
    assert "File too large" in err
    assert not any(target in path.name for path in folder.iterdir())


def test_a_link_out_of_the_run_is_not_followed(folder, capsys):
    (folder / "hub").symlink_to(folder.parent)
    assert run(["export", "run-1", "--for", "hub"]) == 2
    assert "leads out of run-1" in capsys.readouterr().err


class Hub(BaseHTTPRequestHandler):
    """A hub on this machine that keeps what is committed."""

    status = 200
    asked: dict[str, bytes]

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked[self.path] = content
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        address = f"{constants.ENDPOINT}/me/mine"
        answer = {"url": address, "commitUrl": f"{address}/commit/1", "commitOid": "1"}
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(content)["files"]]
            answer["files"] = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    kind = type("OwnHub", (Hub,), {"asked": {}})
    server = HTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield kind
    server.shutdown()
    server.server_close()


def test_a_folder_is_pushed(folder, hub, capsys):
    assert run(["export", "run-1", "--for", "hub", "--push", "me/mine"]) == 0
    assert f"pushed to {constants.ENDPOINT}/me/mine\n" in capsys.readouterr().out
    created = json.loads(hub.asked["/api/repos/create"])
    assert created["visibility"] == "private"
    lines = map(json.loads, hub.asked["/api/models/me/mine/commit/main"].splitlines())
    pushed = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in lines
        if line["key"] == "file"
    }
    assert pushed == {path.name: path.read_bytes() for path in (folder / "hub").iterdir()}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "it does not know the token; log in again"),
        (403, "the token may not write there"),
        (404, "it has no such organisation"),
        (418, "it answered 418"),
    ],
)
def test_a_push_that_is_refused(status, said, folder, hub, capsys):
    hub.status = status
    assert run(["export", "run-1", "--for", "hub", "--push", "me/mine"]) == 2
    err = capsys.readouterr().err
    assert f"digen: could not push to me/mine on the hub: {said}" in err
    assert "hf upload me/mine run-1/hub" in err
    assert TOKEN not in err
    assert err.count("\n") == 1
    assert names_in(folder / "hub") == FILES


def test_a_hub_that_is_not_there(folder, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert run(["export", "run-1", "--for", "hub", "--push", "me/mine"]) == 2
    err = capsys.readouterr().err
    assert "http://127.0.0.1:9 could not be used (ConnectError); the folder is written" in err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run(["export", "run-1", "--for", "hub", "--push", "a/b", "--out", "other"]) == 2
    assert "HF_HUB_OFFLINE forbids it" in capsys.readouterr().err


def test_without_a_token_nothing_is_written(folder, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("deployments.hub.push.get_token", lambda: None)
    assert run(["export", "run-1", "--for", "hub", "--push", "me/mine"]) == 2
    assert "--push needs a token of the Hugging Face hub: log in" in capsys.readouterr().err
    assert not (folder / "hub").exists()
