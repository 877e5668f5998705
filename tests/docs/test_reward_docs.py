"""The code in docs/rewards.md and in the tutorial runs as it stands there."""

import json
import re
import shlex
import sys
import threading
from textwrap import dedent

import pytest
import torch

from deployments.overrides import config_of
from digen_core.config.load import load_config
from digen_core.config.rewards import REWARD_TYPES
from digen_core.config.rewards.judge_template import load_pair_template, load_template
from digen_core.config.rewards.servers import RemoteConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, train_prompts
from digen_core.inputs.shipped import data_folder
from digen_core.rewards import reward_functions
from digen_core.rewards.judge.answers import scores_in
from digen_core.rewards.own import own_reward
from digen_core.rewards.remote import Remote
from digen_core.rewards.scoring import score_images
from support.pages import read_page
from support.paths import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "rewards.md").read_text()
TUTORIAL = (DOCS / "tutorials" / "own-reward.md").read_text()
(SERVER,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FUNCTION, TRIAL, CLASS, NEARNESS = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(f"{FUNCTION}\n\n{CLASS}\n\n{NEARNESS}")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_rewards", None)


def test_the_function_is_tried(folder):
    exec(TRIAL, {})


def test_the_class_is_made_as_its_table_says(folder):
    (folder / "a.toml").write_text(
        TUTORIAL[TUTORIAL.index('    [rewards."my_rewards:Like') :].split("\n\n")[0]
    )
    config = load_config(folder / "a.toml").rewards["my_rewards:Likeness"]
    judge = own_reward(config, torch.device("cpu"))
    image = torch.tensor([0.2, 0.0, 0.9]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    assert judge(image, ["a"]).tolist() == [1.0]
    assert judge(1 - image, ["a"]).item() == pytest.approx(1 - (0.6 + 1.0 + 0.8) / 3)


def test_the_reward_with_metadata_is_told_its_targets(folder, monkeypatch):
    monkeypatch.chdir(folder)
    start = TUTORIAL.index('    {"prompt"')
    rows = TUTORIAL[start:].split("\n\n")[0]
    (folder / "prompts.jsonl").write_text(rows)
    command = re.search(r"(?s)--prompts.train.*?\}'", TUTORIAL)[0].replace("\\", "")
    config = config_of(shlex.split(command))
    train, (held_out,) = train_prompts(config), evaluation_prompts(config)
    assert [prompt.text for prompt in train] == ["a red circle", "a blue square"]
    assert held_out.metadata == {"target": [0.0, 1.0, 0.0]}
    functions = reward_functions(config.rewards, torch.device("cpu"))
    images = torch.ones(2, 3, 4, 4)
    images[:, :, 1, 2] = torch.tensor([1.0, 0.0, 0.0])  # a red pixel in each
    asked = [prompt.text for prompt in train], [prompt.metadata for prompt in train]
    found = score_images(functions, config.rewards, images, *asked)
    assert found["reward"].tolist() == pytest.approx([1.0, 1 / 3])


def test_the_reward_of_latents_is_what_it_says():
    names: dict = {}
    exec(read_page(PAGE).files["my_latents.py"], names)
    steps = torch.tensor([[0.0, 2.0, 2.0], [0.0, 2.0, 2.0]])  # along: 2 and 0, twice; down: nothing
    latents = torch.stack([torch.zeros(4, 2, 3), steps.expand(4, 2, 3)])
    assert names["latent_smoothness"](latents, ["a", "b"]).tolist() == [0, -2]


def test_the_first_table_of_rewards_is_valid(tmp_path):
    text = PAGE[PAGE.index("    [rewards]") : PAGE.index("On a command line")]
    (tmp_path / "a.toml").write_text(text)
    config = load_config(tmp_path / "a.toml")
    assert config.reward_weights == {
        "shapes": 1.0, "pickscore": 0.5, "quality": 1.0, "my_rewards:redness": 0.1,
    }  # fmt: skip


def test_the_judge_and_its_template_are_valid(tmp_path):
    start = PAGE.index("    [rewards.judge]")
    (tmp_path / "a.toml").write_text(PAGE[start : PAGE.index("Such a server", start)])
    judge = load_config(tmp_path / "a.toml").rewards["judge"]
    assert (judge.type, judge.pool) == ("judge", "judges")
    (tmp_path / "mood.toml").write_text(dedent(read_page(PAGE).files["mood.toml"]))
    template = load_template(str(tmp_path / "mood.toml"))
    assert template.columns() == {"mood"}
    answer = json.dumps({"choices": [{"message": {"content": '{"mood": 9, "craft": 3}'}}]})
    found = scores_in(answer.encode(), template)
    assert found == pytest.approx({"score": 0.7, "mood": 0.9, "craft": 0.3})


def test_every_shipped_template_is_in_the_table():
    named = set(re.findall(r"^\| `digen:judges/(\S+)` \| `(\S+)` \|", PAGE, re.MULTILINE))
    shipped = [path.name for path in data_folder("judges").iterdir()]
    of_pairs = [name for name in shipped if name.startswith("pairwise")]
    loaders = {name: load_pair_template if name in of_pairs else load_template for name in shipped}
    assert named == {(name, load(f"digen:judges/{name}").score) for name, load in loaders.items()}


def test_the_rewards_that_compare_samples_are_valid(tmp_path):
    start = PAGE.index("    [rewards.pickscore]\n    weight = 0.0")
    (tmp_path / "a.toml").write_text(PAGE[start : PAGE.index("`ranked` gives", start)])
    config = load_config(tmp_path / "a.toml")
    assert [own.type for own in config.rewards.values()] == ["pickscore", "ranked", "pairwise"]
    assert config.pools == ["judges"]


def test_the_reward_models_are_valid(tmp_path):
    start = PAGE.index("    [rewards.hps3]")
    (tmp_path / "a.toml").write_text(PAGE[start : PAGE.index("| | `hps3`", start)])
    config = load_config(tmp_path / "a.toml")
    assert [own.type for own in config.rewards.values()] == ["hps3", "video_reward"]
    assert config.rewards["video_reward"].dimensions == ("vq", "mq")
    marks = [mark for own in config.rewards.values() for mark in own.marks]
    assert re.findall(r"`(<\|\w+\|>)`", PAGE) == marks


@pytest.mark.parametrize("body", ["arrow", "json"])
def test_the_server_answers_in_its_protocol(body):
    names = {"__name__": "server"}
    exec(SERVER, names)
    server = names["ThreadingHTTPServer"](("127.0.0.1", 0), names["Handler"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = RemoteConfig(url=f"http://127.0.0.1:{server.server_port}/score", body=body)
    red = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(2, 3, 4, 4)
    asked = {"quality": Remote(config, torch.device("cpu"))}, {"quality": config}
    found = score_images(*asked, red, ["a", "b"])
    server.shutdown()
    server.server_close()
    assert found["quality/score"].tolist() == found["quality/red"].tolist() == [1.0, 1.0]


def test_every_type_and_every_option_is_in_the_tables():
    for name, kind in REWARD_TYPES.items():
        assert f"| `{name}` |" in PAGE
        for option in kind.model_fields.keys() - {"type"}:
            assert f"`{option}`" in PAGE, (name, option)
    assert RunConfig().rewards.keys() <= REWARD_TYPES.keys()
