"""Each prompt is embedded once, until it was not used for long or its device is lost."""

from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from flows.runtime.conditions import Conditions
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.round import Round
from support.edits import source


class Submitter:
    """Notes what is submitted."""

    def __init__(self):
        self.prompts = []

    def submit(self, iteration, work):
        prompts = [own.key for own in work.parameters["prompts"]]
        self.prompts += prompts
        return SimpleNamespace(prompts=prompts, device=work.device, label=work.label)


@pytest.fixture
def submitter():
    return Submitter()


def opened(index: int, *prompts: str | Prompt) -> OpenIteration:
    asked = [Prompt(own) if isinstance(own, str) else own for own in prompts]
    return OpenIteration(Round(index, asked), None, 1)


def test_a_prompt_is_encoded_once_for_the_whole_run(submitter):
    conditions = Conditions(RunConfig(), submitter)
    first = conditions.of(opened(0, "a", "b"), 0, "rollout-0")
    assert (first.prompts, first.device, first.label) == (["a"], "rollout-0", "encode g00")
    assert conditions.of(opened(0, "a", "b"), 1, "rollout-1").prompts == ["b"]
    assert conditions.of(opened(7, "c", "a"), 1, "rollout-1") is first
    assert submitter.prompts == ["a", "b"]


def test_the_prompt_unused_for_longest_is_dropped(submitter):
    conditions, it = Conditions(RunConfig(), submitter, capacity=2), opened(0, "a", "b", "c")
    for group in (0, 1, 0, 2):  # b is the one
        conditions.of(it, group, "rollout-0")
    conditions.of(it, 0, "rollout-0")
    assert submitter.prompts == ["a", "b", "c"]
    conditions.of(it, 1, "rollout-0")
    assert submitter.prompts == ["a", "b", "c", "b"]


def test_what_a_lost_device_held_is_encoded_again(submitter):
    conditions, it = Conditions(RunConfig(), submitter), opened(0, "a", "b")
    conditions.of(it, 0, "rollout-0")
    kept = conditions.of(it, 1, "rollout-1")
    conditions.forget("rollout-0")
    assert conditions.of(it, 0, "rollout-1").device == "rollout-1"
    assert conditions.of(it, 1, "rollout-1") is kept
    assert submitter.prompts == ["a", "b", "a"]


def test_the_prompts_of_an_iteration_are_dealt_over_the_devices(submitter):
    conditions, it = Conditions(RunConfig(), submitter), opened(0, "a", "b", "a", "c", "d")
    conditions.of(it, 3, "rollout-1")  # c is there already
    conditions.encode_ahead(it, ["rollout-0", "rollout-1"])
    first, second = conditions.of(it, 2, "rollout-9"), conditions.of(it, 4, "rollout-9")
    assert (first.label, first.prompts, first.device) == ("encode g00 g01", ["a", "b"], "rollout-0")
    assert (second.label, second.prompts, second.device) == ("encode g04", ["d"], "rollout-1")
    conditions.encode_ahead(opened(1, "b", "d"), ["rollout-0"])  # all are there
    assert submitter.prompts == ["c", "a", "b", "d"]


def test_no_task_encodes_too_many_prompts(submitter):
    conditions, it = Conditions(RunConfig(), submitter), opened(0, *map(str, range(20)))
    conditions.encode_ahead(it, ["rollout-0"])
    assert [len(conditions.of(it, group, "").prompts) for group in (0, 7, 8, 16)] == [8, 8, 8, 4]


def test_the_same_words_about_another_image_or_in_another_size_are_another_condition(submitter):
    one, two = (Prompt("a", images=(source(seed),)) for seed in range(2))
    model = {"family": "flux2", "path": "there", "sizes": [[32, 32, 1], [32, 64, 1]]}
    prompts = {"train": "a.jsonl", "image_column": "image", "evaluation_fraction": 0.5}
    config = RunConfig.model_validate({"model": model, "prompts": prompts})
    conditions, it = Conditions(config, submitter), opened(0, one, one, two, "a", one, one)
    keys = [conditions.of(it, group, "rollout-0").prompts for group in range(6)]
    assert len({key for (key,) in keys}) == 4
    assert keys[4:] == keys[:2] != keys[1:3]
    assert keys[3] == ["a"]
    assert len(submitter.prompts) == 4
