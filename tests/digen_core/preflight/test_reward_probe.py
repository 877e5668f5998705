"""Rewards are tried on two grey samples before anything starts; a broken one is told in a line."""

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import broken_rewards
import pytest
import torch

from digen_core.checkpoints.judging import Judging
from digen_core.config.rewards import REWARD_TYPES
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.preflight import reward_probe
from digen_core.preflight.reward_probe import (
    probe,
    probe_before_start,
    probed_by_workers,
    probed_here,
)
from digen_core.rewards import reward_functions

CPU = torch.device("cpu")
TRIED = "; it was tried on two grey images, 32 x 32 for 'a red circle'"


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(reward_probe, "_probed", set())
    broken_rewards.calls.clear()


@pytest.fixture
def config_of(tmp_path):
    """Return a function that makes the config of a run with some rewards."""
    rows = ['{"prompt": "a red circle", "target": 0.5}', '{"prompt": "a \\"blue\\" square"}']
    (tmp_path / "train.jsonl").write_text("\n".join(rows))

    def make(rewards: dict, **tables) -> RunConfig:
        prompts = {"train": str(tmp_path / "train.jsonl"), "evaluation": "others.txt"}
        prompts |= tables.pop("prompts", {})
        return RunConfig.model_validate({"rewards": rewards, "prompts": prompts, **tables})

    return make


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one_value", "returned shape (1,) for 2 images"),
        ("per_pixel", "returned shape (2, 3, 32, 32) for 2 images"),
        ("no_numbers", "returned the list ['good', 'good'], not numbers"),
        ("raises", "raised KeyError: 'caption'"),
        ("not_a_number", "returned nan for image 0 of 2"),
        ("wants_a_column", "raised KeyError: 'target'"),
    ],
)
def test_a_broken_function_is_refused_or_warned_of(name, message, config_of):
    warnings = []
    with pytest.raises(UserError) as error:
        probe_before_start(config_of({f"broken_rewards:{name}": 1.0}), warnings.append)
    assert str(error.value) == f"reward 'broken_rewards:{name}' {message}{TRIED}"
    assert warnings == []
    neutral = {f"broken_rewards:{name}": {"on_failure": "neutral"}}
    probe_before_start(config_of(neutral), warnings.append)
    assert warnings == [str(error.value)]


def test_a_long_prompt_is_shown_in_short(config_of, tmp_path):
    (tmp_path / "long.txt").write_text("a red circle " * 5000)
    config = config_of(
        {"broken_rewards:raises": 1.0}, prompts={"train": str(tmp_path / "long.txt")}
    )
    with pytest.raises(UserError, match=r"for 'a red circle .*\.\.\..* a red circle'$") as error:
        probe_before_start(config, print)
    assert len(str(error.value)) < 400


def test_it_is_called_once_with_prompts_of_the_run_and_their_metadata(config_of):
    config = config_of({"broken_rewards:noted": 1.0}, prompts={"metadata_columns": ["target"]})
    for _ in range(2):  # the command line and the flow
        probe_before_start(config, pytest.fail)
    asked = ["a red circle", 'a "blue" square'], [{"target": 0.5}, {"target": None}]
    assert broken_rewards.calls == [((2, 3, 32, 32), *asked)]


def test_what_sees_groups_is_tried_with_a_group_of_one_prompt(config_of):
    config = config_of({"broken_rewards:noted": {"sees": "groups"}})
    probe_before_start(config, pytest.fail)
    assert broken_rewards.calls == [((2, 3, 32, 32), ["a red circle"] * 2, [{}] * 2)]


def test_an_evaluation_tries_what_it_asks_with_its_own_prompts(config_of, tmp_path):
    (tmp_path / "others.txt").write_text("two blue squares\n")
    prompts = {"evaluation": str(tmp_path / "others.txt")}
    rewards = {"broken_rewards:noted": 1.0, "broken_rewards:raises": {"sees": "groups"}}
    probe_before_start(config_of(rewards, prompts=prompts), pytest.fail, is_evaluation=True)
    assert broken_rewards.calls == [((2, 3, 32, 32), ["two blue squares"] * 2, [{}] * 2)]


def test_an_evaluation_with_a_broken_reward_starts_nothing(config_of, tmp_path, monkeypatch):
    from deployments import local

    (tmp_path / "others.txt").write_text("two blue squares\n")
    prompts = {"evaluation": str(tmp_path / "others.txt")}
    config = config_of({"broken_rewards:raises": 1.0}, prompts=prompts)
    monkeypatch.setattr(local, "judged_config", lambda *_: config)
    monkeypatch.setattr("digen_core.preflight.run.check_judged", lambda *_: None)
    monkeypatch.setattr(local, "orchestrated", lambda *_, **__: pytest.fail("something started"))
    with pytest.raises(UserError, match=r"raised KeyError.*32 x 32 for 'two blue squares'$"):
        local.run_evaluation(tmp_path, Judging(), pytest.fail)


def test_ranks_are_not_tried_as_they_are_made_of_scores(config_of):
    ranks = {"type": "ranked", "of": "broken_rewards:noted"}
    config = config_of({"ranks": ranks, "broken_rewards:noted": 0.5})
    probe_before_start(config, pytest.fail)
    assert list(probed_here(config)) == ["broken_rewards:noted"]
    assert probed_by_workers(config, None) == {}


def test_videos_are_tried_with_videos(config_of):
    model = {"family": "wan", "path": "a/b", "height": 16, "width": 24, "num_frames": 5}
    own = {"type": "function", "function": "broken_rewards:noted", "takes": "videos"}
    probe_before_start(config_of({"own": own, "motion": 1.0}, model=model), pytest.fail)
    ((shape, *_),) = broken_rewards.calls
    assert shape == (2, 5, 3, 16, 24)


def test_what_comes_with_digen_is_sound_on_what_it_is_tried_on(config_of):
    rewards = dict.fromkeys(("jpeg_compressibility", "jpeg_incompressibility"), 1.0)
    rewards["broken_rewards:contrast_free"] = 1.0
    probe_before_start(config_of(rewards), pytest.fail)


@pytest.mark.slow
def test_ocr_is_asked_for_a_text_that_it_can_look_for(config_of, tmp_path):
    (tmp_path / "quoted.txt").write_text('a sign that says "stop"\n')
    prompts = {"train": str(tmp_path / "quoted.txt")}
    probe_before_start(config_of({"ocr": 1.0}, prompts=prompts), pytest.fail)


def test_what_loads_a_model_is_left_to_the_workers(config_of):
    rewards = {"broken_rewards:Loaded": {"pool": "p"}, "broken_rewards:noted": 1.0, "pickscore": 1}
    config = config_of(rewards, cluster={"reward_workers": {"p": 1}})
    assert list(probed_here(config)) == ["broken_rewards:noted"]
    assert list(probed_by_workers(config, "p")) == ["broken_rewards:Loaded"]
    assert list(probed_by_workers(config, None)) == ["pickscore"]
    probe_before_start(config, pytest.fail)  # and makes none of them


def test_latents_are_left_to_the_workers_whose_model_tells_their_shape(config_of):
    own = {"takes": "latents", "pool": "p"}
    rewards = {"broken_rewards:noted": own, "broken_rewards:one_value": {"takes": "latents"}}
    config = config_of(rewards, cluster={"reward_workers": {"p": 1}})
    assert probed_here(config) == {}
    assert list(probed_by_workers(config, "p")) == ["broken_rewards:noted"]
    probe_before_start(config, pytest.fail)
    assert broken_rewards.calls == []
    asked = config.rewards, config.model.size, [Prompt("a red circle")], CPU, pytest.fail
    functions = reward_functions(config.rewards, CPU)
    message = (
        r"'broken_rewards:one_value' returned shape \(1,\) for 2 images; it was tried on noise in "
        r"place of two latents, \[4, 2, 3\], for 'a red circle'"
    )
    with pytest.raises(UserError, match=message):
        probe(functions, *asked, torch.zeros(2, 4, 2, 3))
    assert broken_rewards.calls == [((2, 4, 2, 3), ["a red circle"] * 2, [{}] * 2)]


def test_on_a_running_cluster_everything_is(config_of):
    config = config_of(
        {"broken_rewards:raises": 1.0}, cluster={"scheduler_address": "tcp://127.0.0.1:1"}
    )
    assert probed_here(config) == {}
    assert list(probed_by_workers(config, None)) == ["broken_rewards:raises"]
    probe_before_start(config, pytest.fail)


def test_each_reward_is_either_quick_or_loads_a_model():
    with_models = {"clipscore", "pickscore", "hps", "aesthetic", "geneval", "consistency"}
    with_models |= {"source_similarity", "image_reward", "hps3", "video_reward", "blip_vqa"}
    with_models |= {"subject_consistency", "dpg_blip"}
    assert REWARD_TYPES.keys() - reward_probe._QUICK == with_models | {
        *("function", "ranked", "given")
    }


def test_the_workers_say_the_same(config_of):
    rewards = config_of({"broken_rewards:OneValue": 1.0}).rewards
    functions = reward_functions(rewards, CPU)
    with pytest.raises(UserError, match=re.escape("returned shape (1,) for 2 images; it was")):
        probe(functions, rewards, (32, 32, 1), [Prompt("a red circle")], CPU, pytest.fail)


class Scorer(BaseHTTPRequestHandler):
    """A server that answers with one number, however many samples it is asked about."""

    num_requests = 0

    def do_POST(self):
        type(self).num_requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"score": [1.0]}')

    def log_message(self, *arguments):
        pass


def test_a_server_is_asked_once(config_of):
    with ThreadingHTTPServer(("127.0.0.1", 0), Scorer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/score"
        config = config_of({"judge": {"type": "remote", "url": url, "pool": "p"}})
        with pytest.raises(UserError, match=r"reward 'judge' failed: .* tried on two grey images"):
            probe_before_start(config, pytest.fail)
        server.shutdown()
    assert Scorer.num_requests == 1


def test_a_server_that_is_not_there_is_told(config_of):
    remote = {"type": "remote", "url": "http://127.0.0.1:9/", "max_attempts": 2}
    remote["backoff_seconds"] = 0
    with pytest.raises(UserError, match=r"cannot be reached: .* \(attempt 2 of 2\)"):
        probe_before_start(config_of({"judge": remote}), pytest.fail)
