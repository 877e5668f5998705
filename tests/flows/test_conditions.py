"""Each prompt is embedded once, until it was not used for long or its device is lost."""

from types import SimpleNamespace

import pytest

from flows.conditions import Conditions
from flows.open_iteration import OpenIteration
from flows.session import Round


class Submitter:
    """Notes what is submitted."""

    def __init__(self):
        self.prompts = []

    def submit(self, iteration, task, label, device, *, prompt, **rest):
        self.prompts.append(prompt)
        return SimpleNamespace(prompt=prompt, device=device, label=label)


@pytest.fixture
def submitter():
    return Submitter()


def opened(index: int, *prompts: str) -> OpenIteration:
    return OpenIteration(Round(index, list(prompts), range(1)), None, 1)


def test_a_prompt_is_encoded_once_for_the_whole_run(submitter):
    conditions = Conditions(submitter)
    first = conditions.of(opened(0, "a", "b"), 0, "rollout-0")
    assert (first.prompt, first.device, first.label) == ("a", "rollout-0", "encode g00")
    assert conditions.of(opened(0, "a", "b"), 1, "rollout-1").prompt == "b"
    assert conditions.of(opened(7, "c", "a"), 1, "rollout-1") is first
    assert submitter.prompts == ["a", "b"]


def test_the_prompt_unused_for_longest_is_dropped(submitter):
    conditions, it = Conditions(submitter, capacity=2), opened(0, "a", "b", "c")
    for group in (0, 1, 0, 2):  # b is the one
        conditions.of(it, group, "rollout-0")
    conditions.of(it, 0, "rollout-0")
    assert submitter.prompts == ["a", "b", "c"]
    conditions.of(it, 1, "rollout-0")
    assert submitter.prompts == ["a", "b", "c", "b"]


def test_what_a_lost_device_held_is_encoded_again(submitter):
    conditions, it = Conditions(submitter), opened(0, "a", "b")
    conditions.of(it, 0, "rollout-0")
    kept = conditions.of(it, 1, "rollout-1")
    conditions.forget("rollout-0")
    assert conditions.of(it, 0, "rollout-1").device == "rollout-1"
    assert conditions.of(it, 1, "rollout-1") is kept
    assert submitter.prompts == ["a", "b", "a"]
