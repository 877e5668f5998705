"""The reward ``judge`` against transformers' own server, which serves a tiny LLaVA of its kind."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from digen_core.config.rewards.judges import JudgeConfig
from digen_core.rewards.judge.judge import Judge
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.scoring import RewardError, score_images
from support.judge_servers import TinyVlm
from support.waiting import comes_to

pytestmark = pytest.mark.nightly

DIGITS = "0123456789"
IMAGES = torch.rand(6, 3, 40, 56, generator=torch.Generator().manual_seed(0))
PROMPTS = ["012", "12", "345", "6", "7890", "99"]
PATTERN = """
score = "pattern"
user = "{prompt}"
pattern = '([0-9])'
range = [0, 9]
"""
CHAT = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def vlm():
    """A model whose answer is one digit, after which it stops."""
    pytest.importorskip("openai")  # which that server takes types from
    vlm = TinyVlm(DIGITS)
    first = vlm.tokens.index("0")
    with torch.no_grad():
        vlm.model.lm_head.weight[:first] = 0  # some digit is above 0
    vlm.model.generation_config.eos_token_id = list(range(first, len(vlm.tokens)))
    vlm.processor.chat_template = CHAT
    return vlm


@pytest.fixture(scope="module")
def served(vlm, tmp_path_factory):
    """Yield where the server is, and what it calls the model."""
    folder = tmp_path_factory.mktemp("judge")
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = Path(sys.executable).with_name("transformers")
    words = [command, "serve", folder, "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--device", "cpu"],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        assert comes_to(lambda: answers(process, port), seconds=120)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        process.terminate()
        process.wait()


def answers(process, port: int) -> bool:
    assert process.poll() is None, "the server has ended"
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False


def score(served, **options):
    url, model = served
    config = JudgeConfig(url=url, model=model, max_attempts=1, max_tokens=4, **options)
    judge = Judge(config, torch.device("cpu"))
    return score_images({"judge": judge}, {"judge": config}, IMAGES, PROMPTS, ())


def test_the_score_is_what_the_model_itself_says(served, vlm, tmp_path):
    template = tmp_path / "digit.toml"
    template.write_text(PATTERN)
    found = score(served, template=str(template), concurrency=3)
    wanted = []
    for image, prompt in zip(as_pixels(IMAGES), PROMPTS, strict=True):
        logs = vlm.log_probs([image], "", prompt)
        wanted.append(int(max(DIGITS, key=logs.__getitem__)) / 9)
    np.testing.assert_allclose(found["judge/score"], wanted)
    assert len(set(wanted)) > 1, "images and prompts make no difference"


def test_a_server_without_log_probs_is_said_to_be_one(served):
    with pytest.raises(RewardError, match=r"answered without log-probs; a score of yes_no needs"):
        score(served)
