"""What a reward is asked, as it is kept of one that failed."""

import torch

from digen_core.config.rewards.own import FunctionConfig
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt
from digen_core.rewards.asked import Asked
from digen_core.transport.kept_inputs import read_inputs
from support.edits import source
from tasks.score import _asked, asked_of, scores_of


def test_what_was_asked_is_asked_again():
    images = torch.rand(3, 3, 16, 24)
    shown = ((source(0), source(1), source(2)), (source(3),), (source(4), source(0)))
    prompts = [Prompt(text, {"n": 1}, images=own) for text, own in zip("abc", shown, strict=True)]
    asked = Asked.of(prompts, (16, 24, 1), images.device)
    assert [len(own) for own in asked.more_sources] == [2, 0, 1]
    again = asked_of(*_asked(asked, {"images": images}), images.device)
    assert (again.prompts, again.metadata) == (["a", "b", "c"], [{"n": 1}] * 3)
    assert torch.equal(again.sources, asked.sources)
    for found, expected in zip(again.more_sources, asked.more_sources, strict=True):
        assert torch.equal(found, expected)


def test_of_one_image_each_there_are_no_others():
    images = torch.rand(2, 3, 16, 24)
    asked = Asked.of([Prompt("a", images=(source(0),))] * 2, (16, 24, 1), images.device)
    assert asked_of(*_asked(asked, {"images": images}), images.device).more_sources is None
    frames = asked.repeated(3)
    assert (frames.sources.shape, frames.more_sources) == ((6, 3, 16, 24), None)
    texts = Asked.of([Prompt("a")] * 2, (16, 24, 1), images.device)
    assert texts.sources is texts.more_sources is None


def test_all_rewards_that_drop_a_group_are_kept_with_its_samples(tmp_path):
    reward = {"function": "m:f", "on_failure": "drop"}
    configs = {name: FunctionConfig(**reward) for name in ("one", "other", "sound")}
    none, some = (
        lambda images, prompts, own=own: torch.full((3,), own) for own in (torch.nan, 1.0)
    )
    functions = {"one": none, "other": none, "sound": some}
    at = Fragment(0, 1, 2, 0, 3), tmp_path
    images, asked = torch.rand(3, 3, 16, 24), Asked(["a"] * 3, [{}] * 3)
    scores_of(functions, configs, {"images": images}, asked, at)
    (kept,) = read_inputs(tmp_path, 0)
    assert kept.about["rewards"] == ["one", "other"]
    assert kept.found == "reward 'one', 'other' gave no number"
