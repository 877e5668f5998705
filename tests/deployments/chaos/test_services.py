"""Services of stories: processes that come back, and a scorer that finds what its rewards find."""

import os
import signal
import socket
import sys
from contextlib import suppress
from threading import Thread
from time import sleep

import pytest
import torch

from deployments.chaos import services
from deployments.chaos.scorer import Scorer
from deployments.chaos.services import Supervised, served
from deployments.overrides import config_of
from digen_core.config.rewards.servers import RemoteConfig
from digen_core.rewards import reward_functions
from support.mlflow_server import free_port
from support.waiting import comes_to


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(services, "RESTART_SECONDS", 0.5)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_what_is_killed_is_started_again_until_it_is_closed(tmp_path):
    port = free_port()
    service = Supervised(("http.server", str(port)), {}, tmp_path / "log")
    assert comes_to(lambda: answers(port))
    (before,) = service.pids
    os.kill(before, signal.SIGKILL)
    assert comes_to(lambda: service.pids not in ([], [before]) and answers(port))
    service.close()
    assert not answers(port)
    sleep(1)
    assert not answers(port)


def test_followers_are_started_anew_with_whom_they_follow(tmp_path):
    sleeping = tmp_path / "sleeping.py"
    sleeping.write_text("import time\ntime.sleep(1000)\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    follower = Supervised(("sleeping",), environment, tmp_path / "follower")
    leader = Supervised(("sleeping",), environment, tmp_path / "leader", [follower])
    before = [follower.pids, leader.pids]
    leader.kill()
    assert comes_to(lambda: follower.pids not in ([], before[0]))
    assert comes_to(lambda: leader.pids not in ([], before[1]))
    for one in (leader, follower):
        one.close()


REWARDS = ("--rewards.shapes", "1", "--rewards.jpeg_compressibility", "0.5")


def test_a_scorer_finds_what_its_rewards_find():
    configs = served(config_of(["chaos", *REWARDS], "digen chaos"))
    assert configs.keys() == {"shapes", "jpeg_compressibility"}
    local = reward_functions(configs, torch.device("cpu"))
    images = torch.randint(0, 256, (3, 3, 32, 32)) / 255
    prompts = ["a red circle"] * 3
    with Scorer(0, configs) as scorer:
        Thread(target=scorer.serve_forever).start()
        for name, function in local.items():
            url = f"http://127.0.0.1:{scorer.server_port}/{name}"
            remote = reward_functions({name: RemoteConfig(url=url)}, torch.device("cpu"))[name]
            found, expected = remote(images, prompts), function(images, prompts)
            expected = expected if isinstance(expected, dict) else {"score": expected}
            assert found.keys() == expected.keys()
            for key, values in expected.items():
                assert torch.equal(found[key], torch.as_tensor(values, dtype=torch.float64))
        scorer.shutdown()


def test_a_run_asks_the_scorer_for_what_that_has():
    config = config_of(["chaos"], "digen chaos")
    asked = config_of(["chaos", *services._arguments(config)], "digen chaos").rewards["shapes"]
    assert isinstance(asked, RemoteConfig)
    own = config.rewards["shapes"]
    assert (asked.weight, asked.pool, asked.on_failure) == (own.weight, own.pool, own.on_failure)


def test_rewards_with_options_of_their_own_stay_where_they_are():
    options = ("--rewards.ocr", "1", "--rewards.mine.type", "function")
    config = config_of(["chaos", *options, "--rewards.mine.function", "a:b"], "digen chaos")
    assert served(config).keys() == {"shapes"}
