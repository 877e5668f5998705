"""The strict group of tests: what NCCL refuses, and what would hang over it, is found on CPUs."""

import pytest

from support.beyond_nccl import OTHERS, crossing, refused
from support.gang_processes import run_gang
from support.in_order import RECEIVE, SEND, Asked, stuck
from support.visible import visible_when_imported
from tasks.cluster import start_method

BOTH = (0, 1)


def sent(peer: int, number: int = 4, group: str = "0") -> Asked:
    return Asked(SEND, group, BOTH, (("float32", number),), peer)


def received(peer: int, number: int = 4, group: str = "0") -> Asked:
    return Asked(RECEIVE, group, BOTH, (("float32", number),), peer)


def added(number: int = 4, group: str = "0", members: tuple[int, ...] = BOTH) -> Asked:
    return Asked("allreduce", group, members, (("float32", number),))


def test_what_members_ask_for_in_one_order_is_done():
    assert not stuck([[sent(1), received(1), added()], [received(0), sent(0), added()]])
    third = added(group="1", members=(0, 2))
    assert not stuck([[third, sent(1)], [received(0)], [third]])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([sent(1), received(1)], [sent(0), received(0)]),
        ([sent(1), added()], [added(), received(0)]),
        ([added(group="0"), added(group="1")], [added(group="1"), added(group="0")]),
        ([sent(1, 4)], [received(0, 5)]),
        ([sent(1, group="0")], [received(0, group="1")]),
        ([added(4)], [added(5)]),
        ([added()], []),
    ],
)
def test_what_would_hang_is_found(first, second):
    found = stuck([first, second])
    assert found[0] == first[0]
    assert found.get(1) == (second[0] if second else None)


def test_what_gloo_alone_does_is_refused(tmp_path):
    folder = tmp_path / "crossing"
    folder.mkdir()
    assert run_gang(2, tmp_path, refused) == [list(OTHERS)] * 2
    with pytest.raises(AssertionError, match="send"):
        run_gang(2, folder, crossing)


@pytest.mark.ci
def test_members_import_models_once_they_see_their_gpu_alone(tmp_path, monkeypatch):
    """As diffusers asks for a GPU then: a fork could use none, and all members would use one."""
    monkeypatch.setattr(start_method, "ACCELERATORS", ("/",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert run_gang(2, tmp_path, visible_when_imported) == ["", ""]
