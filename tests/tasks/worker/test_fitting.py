"""Work in parts that fit into memory, and the line that says what to change where nothing fits."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from digen_core.errors import UserError
from tasks.gang.messages import GangBrokenError
from tasks.worker.fitting import Fitting, needing_memory

SMALL, LARGE = (64, 64, 1), (128, 64, 5)


class Memory:
    """Of a device that takes so many samples at once; notes what it was asked for."""

    def __init__(self, room):
        self.room = room
        self.asked = []

    def work(self, part):
        samples = list(range(part.start, part.stop))
        self.asked.append(len(samples))
        if len(samples) > self.room:
            raise torch.OutOfMemoryError(f"{len(samples)} samples")
        return samples


@given(num_samples=st.integers(1, 40), room=st.integers(1, 40))
def test_every_sample_is_in_one_part(num_samples, room):
    memory = Memory(room)
    parts = Fitting("rollout-0").in_parts("denoise", SMALL, num_samples, memory.work)
    assert [sample for part in parts for sample in part] == list(range(num_samples))
    assert all(len(part) <= room for part in parts)
    if num_samples <= room:
        assert memory.asked == [num_samples]


def test_what_fitted_is_remembered_for_each_activity_and_size():
    fitting, memory = Fitting("rollout-0"), Memory(3)
    assert fitting.in_parts("denoise", SMALL, 8, memory.work) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert memory.asked == [8, 4, 2, 2, 2, 2]
    memory.asked.clear()
    assert len(fitting.in_parts("denoise", SMALL, 8, memory.work)) == 4
    assert memory.asked == [2] * 4
    memory.asked.clear()
    fitting.in_parts("decode", SMALL, 3, memory.work)
    fitting.in_parts("denoise", LARGE, 3, memory.work)
    assert memory.asked == [3, 3]


def test_what_a_gang_does_together_is_not_tried_again():
    """Its other members wait for what this one did not do."""
    memory, fitting = Memory(3), Fitting("rollout-0", {"denoise"})
    with pytest.raises(UserError, match=r"here for 8 together .*smaller rollout.fragment_size"):
        fitting.in_parts("denoise", SMALL, 8, memory.work)
    assert memory.asked == [8]
    assert len(fitting.in_parts("decode", SMALL, 8, memory.work)) == 4


def test_what_was_done_before_is_not_done_again():
    """Memory may be short later than at the first part."""
    memory = Memory(4)
    fitting = Fitting("rollout-0")
    fitting.in_parts("denoise", SMALL, 8, memory.work)
    memory.asked.clear()

    def shrinking(part):
        memory.room = 4 if part.start == 0 else 2
        return memory.work(part)

    assert fitting.in_parts("denoise", SMALL, 8, shrinking) == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert memory.asked == [4, 4, 2, 2]


def test_where_one_sample_does_not_fit_a_line_says_what_to_change():
    with pytest.raises(UserError) as error:
        Fitting("rollout-0").in_parts("denoise", LARGE, 2, Memory(0).work)
    assert str(error.value) == (
        "rollout-0 has not enough memory to denoise one sample (samples of 128 x 64 pixels and 5 "
        "frames): use a smaller model.height, model.width or model.num_frames, or model.dtype = "
        "'bfloat16'"
    )


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_what_cannot_be_done_in_parts(error):
    message = "trainer-0 has not enough memory for the optimizer step .*: train fewer weights"
    with pytest.raises(UserError, match=message), needing_memory("trainer-0", "step", SMALL):
        raise error


def test_other_errors_are_passed_on():
    def broken(part):
        raise RuntimeError("not of memory")

    with pytest.raises(RuntimeError, match="not of memory"):
        Fitting("rollout-0").in_parts("denoise", SMALL, 2, broken)


NCCL = "NCCL error in: NCCLUtils.cpp:93, unhandled cuda error\nCuda failure 2 'out of memory'"


@pytest.mark.parametrize(
    "text",
    [
        NCCL,
        "CUDA error: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_what_allocates_beside_torch_may_have_no_memory_either(text):
    with pytest.raises(UserError, match="not enough memory to add up"), memory_for("sum"):
        raise torch.distributed.DistBackendError(text)
    memory = Memory(3)

    def work(part):
        try:
            return memory.work(part)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(text) from error

    assert len(Fitting("rollout-0").in_parts("decode", SMALL, 8, work)) == 4


def test_another_error_is_what_it_is():
    with pytest.raises(RuntimeError, match="invalid argument"), memory_for("sum"):
        raise RuntimeError("invalid argument")
    with pytest.raises(RuntimeError, match="invalid argument"):
        Fitting("rollout-0").in_parts("decode", SMALL, 8, invalid)


def test_a_gang_that_is_broken_is_not_tried_again_with_fewer():
    """Whatever its member failed of: the next try would only say that it was broken before."""
    tried = []

    def broken(part):
        tried.append(part)
        raise GangBrokenError("member 1 failed: OutOfMemoryError: CUDA out of memory")

    with pytest.raises(GangBrokenError, match="member 1 failed"):
        Fitting("rollout-0").in_parts("evaluate", SMALL, 8, broken)
    assert len(tried) == 1
    with pytest.raises(GangBrokenError, match="member 1 failed"), memory_for("sum"):
        broken(None)


def invalid(part):
    raise RuntimeError("invalid argument")


def memory_for(activity):
    return needing_memory("trainer-0", activity, SMALL)
