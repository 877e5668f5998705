"""The GPUs of a machine, dealt to the workers that a run starts."""

import pytest
import torch

from digen_core.control.protocol import Device
from digen_core.errors import UserError
from tasks.cluster.gpus import (
    card,
    deal_gpus,
    require_own_gpus,
    sharing,
    spares_without_own_gpu,
    visible_gpus,
)
from tasks.gang import forming

DEVICES = [
    Device("rollout-0", frozenset({"rollout"}), size=2),
    Device("trainer-0", frozenset({"trainer"})),
]


def test_workers_take_gpus_in_turns():
    assert deal_gpus(DEVICES, ["4", "5", "7"]) == {
        "rollout-0": "4",
        "rollout-0.1": "5",
        "trainer-0": "7",
    }
    assert deal_gpus(DEVICES, ["0", "1"])["trainer-0"] == "0"


def test_workers_that_score_take_what_is_left():
    """They would all compute on the first, beside a device."""
    found = deal_gpus(DEVICES, ["0", "1", "2", "3", "4"], ["judges-0", "judges-1", "elders-0"])
    assert [found[name] for name in ("judges-0", "judges-1", "elders-0")] == ["3", "4", "0"]


def test_workers_that_share_gpus_are_told():
    """Each holds the model, or its part, which may fit a card once only."""
    assert sharing(DEVICES, ["0", "1"]).startswith("3 workers share the memory of 2 GPUs; fewer")
    assert sharing(DEVICES, []) is None
    assert sharing(DEVICES, ["0", "1", "2"]) is None


@pytest.mark.parametrize("gpus", [[], ["0"]])
def test_where_there_is_no_choice_nothing_is_said(gpus):
    assert deal_gpus(DEVICES[1:], gpus) == {}


def test_a_gang_needs_a_gpu_for_each_member():
    with pytest.raises(UserError, match="a gang of 2 needs 2 GPUs, but this machine has 1"):
        deal_gpus(DEVICES, ["0"])


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("2,0", ["2", "0"]),
        (" 1, 3", ["1", "3"]),
        ("GPU-5a,MIG-7b", ["GPU-5a", "MIG-7b"]),
        ("1,-1,2", ["1"]),
        ("0,,2", ["0"]),
        ("MIG-GPU-5a/1/0", ["MIG-GPU-5a/1/0"]),
        ("-1", []),
        ("NoDevFiles", []),
        ("", []),
    ],
)
def test_gpus_are_those_that_cuda_would_see(named, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}) == found


def test_where_none_are_named_all_are_visible(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert visible_gpus({}) == ["0", "1"]


def test_a_process_without_a_gpu_has_no_card():
    assert card() == ""


@pytest.mark.parametrize(
    "cards",
    [
        {},
        {"a": "x"},
        {"a": "", "b": "", "c": ""},
        {"a": "x", "b": "y", "c": "z"},
        {"a": "", "c": ""},
    ],
)
def test_members_that_compute_on_the_same_kind_are_taken(cards):
    """Of one that does not answer nothing is known: it is lost, as is soon found."""
    require_own_gpus(cards, ["a", "b", "c"])


WRONG = {
    "one without": (
        {"a": "x", "b": "y", "c": ""},
        r"member 2 of a gang, the worker at c, sees no GPU, but member 0 .* at a, sees one; have",
    ),
    "a leader without": (
        {"a": "", "b": "y", "c": "z"},
        r"member 0 of a gang, the worker at a, sees no GPU, but member 1 .* at b, sees one; have",
    ),
    "the same": (
        {"a": "x", "b": "y", "c": "x"},
        r"member 2 of a gang, the worker at c, computes on the GPU of member 0 .* at a, x; have",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_members_that_would_wait_for_each_other_are_refused(case, monkeypatch):
    """Before any of them is asked to join: NCCL has no line for that, or none at all."""
    cards, message = WRONG[case]
    with pytest.raises(UserError, match=message):
        require_own_gpus(cards, ["a", "b", "c"])
    monkeypatch.setattr(forming, "on_scheduler", lambda *_, **__: None)
    monkeypatch.setattr(forming, "on_workers", lambda *_, **__: cards)
    monkeypatch.setattr(forming, "on_worker", lambda *_: pytest.fail("a member was asked"))
    with pytest.raises(UserError, match=message):
        forming.form_gang(None, "a", ["b", "c"])


@pytest.mark.parametrize(
    ("cards", "unfit"),
    [
        ({"a": "x", "b": "y", "c": "z"}, {}),
        ({"a": "x", "b": "", "c": "z"}, {"b": "member 1"}),
        ({"a": "", "b": "y", "c": ""}, {"b": "member 1"}),
        ({"a": "x", "b": "z", "c": "z"}, {"b": "member 1"}),  # a member of its own is at home
        ({"b": "y", "c": ""}, {"b": "member 1"}),
        ({"a": "x", "c": "x"}, {}),
        ({"a": "x", "b": "y", "c": ""}, {}),  # what is wrong with others is the run's end
    ],
)
def test_a_spare_computes_as_the_others_of_its_gang(cards, unfit):
    found = spares_without_own_gpu(cards, ["a", "b", "c"], ["b"])
    assert found.keys() == unfit.keys()
    assert all(who in found[address] for address, who in unfit.items())


def test_of_two_spares_with_the_same_gpu_the_second_is_left_out():
    cards = {"a": "x", "b": "y", "c": "y"}
    assert list(spares_without_own_gpu(cards, ["a", "b", "c"], ["b", "c"])) == ["c"]
