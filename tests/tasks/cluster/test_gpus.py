"""The GPUs of a machine, dealt to the workers that a run starts."""

import pytest

from digen_core.control.protocol import Device
from digen_core.errors import UserError
from tasks.cluster.gpus import deal_gpus

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


@pytest.mark.parametrize("gpus", [[], ["0"]])
def test_where_there_is_no_choice_nothing_is_said(gpus):
    assert deal_gpus(DEVICES[1:], gpus) == {}


def test_a_gang_needs_a_gpu_for_each_member():
    with pytest.raises(UserError, match="a gang of 2 needs 2 GPUs, but this machine has 1"):
        deal_gpus(DEVICES, ["0"])
