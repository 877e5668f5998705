"""What a process uses: against what it was made to use."""

import time
from mmap import mmap

import pytest

from digen_core.trace.usage import Usage, usage_metrics
from tasks.worker.usage import UsageMeter


def test_parts_of_an_iteration_add_up():
    parts = [Usage(1.0, 0.5, 100, (10.0, 20.0), 7), Usage(3.0, 5.5, 50, (60.0,), 5)]
    assert usage_metrics("w", parts) == {
        "system/w/cpu_percent": 150.0,
        "system/w/memory_bytes": 100.0,
        "system/w/gpu_percent": 30.0,
        "system/w/gpu_memory_bytes": 7.0,
    }


def test_without_a_gpu_there_is_nothing_about_one():
    assert set(usage_metrics("w", [Usage(1.0, 0.5, 100)])) == {
        "system/w/cpu_percent",
        "system/w/memory_bytes",
    }


def test_the_meter_sees_work_and_memory():
    meter = UsageMeter()
    time.sleep(0.2)
    idle = meter.read()
    assert idle.cpu_seconds < 0.5 * idle.seconds
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    with mmap(-1, 256 << 20) as fresh:  # the allocator would hand out what other tests freed
        for _ in range(256):
            fresh.write(bytes(1 << 20))
        busy = meter.read()
    assert busy.cpu_seconds >= 0.1
    assert busy.memory_bytes - idle.memory_bytes == pytest.approx(256 << 20, rel=0.2)


@pytest.mark.gpu
def test_the_meter_sees_the_gpu():
    import torch

    meter = UsageMeter()
    kept = torch.ones(256, 1024, 1024, device="cuda")  # 1 GiB
    time.sleep(2.5)
    used = meter.read()
    assert used.gpu_memory_bytes >= kept.nbytes
    assert all(0 <= percent <= 100 for percent in used.gpu_percent)
