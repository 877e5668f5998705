"""What a process uses: against what it was made to use."""

import time
from mmap import mmap

import pytest

from digen_core.trace.usage import Usage, energy_metrics, usage_metrics
from tasks.worker import usage as module
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


def test_energy_by_hand():
    """Two devices; the first part of a process tells nothing, as nobody has looked before it."""
    first = [Usage(0.1, 0.1, 1), Usage(2.0, 1.0, 1, joules=600.0), Usage(3.0, 1.0, 1, joules=300.0)]
    usage = {"a": first, "b": [Usage(4.0, 1.0, 1, joules=100.0)]}
    assert energy_metrics(usage, set(), 8) == {"energy/joules_per_sample": 125.0}
    assert energy_metrics(usage, {"c"}, 8)
    assert usage_metrics("b", usage["b"])["system/b/watts"] == 25.0


def test_energy_of_a_card_that_devices_share_counts_once():
    def used(joules, card):
        return [Usage(4.0, 1.0, 1, joules=joules, card=card)]

    usage = {"a": used(800.0, "x"), "b": used(760.0, "x"), "c": used(400.0, "y")}
    assert energy_metrics(usage, set(), 8) == {"energy/joules_per_sample": 150.0}


@pytest.mark.parametrize(
    ("usage", "gangs"),
    [
        ({}, set()),
        ({"a": [Usage(1.0, 1.0, 1)]}, set()),
        ({"a": [Usage(1.0, 1.0, 1, joules=5.0)], "b": [Usage(1.0, 1.0, 1)]}, set()),
        ({"a": [Usage(1.0, 1.0, 1, joules=5.0)]}, {"a"}),
    ],
    ids=["no task", "nothing tells", "one does not tell", "a gang"],
)
def test_energy_is_missing_and_not_zero(usage, gangs):
    assert energy_metrics(usage, gangs, 8) == {}


@pytest.fixture
def driver(monkeypatch):
    """What the driver of a GPU says, and the time, which the test has pass."""
    said = {"milliwatts": 400_000, "time": 100.0}

    def power():
        if said["milliwatts"] is None:
            raise RuntimeError("not supported")
        return said["milliwatts"]

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # the test looks, no thread
    monkeypatch.setattr(module, "monotonic", lambda: said["time"])
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1, 3))
    monkeypatch.setattr("torch.cuda.utilization", lambda: 50)
    monkeypatch.setattr("torch.cuda.power_draw", power)
    return said


def test_the_meter_adds_up_the_power_between_its_looks(driver):
    meter = UsageMeter()
    driver["time"] += 1.0
    meter.look()
    driver.update(time=driver["time"] + 2.0, milliwatts=100_000)
    meter.look()
    driver["time"] += 0.5
    assert meter.read().joules == 400.0 + 2 * 100.0
    driver["time"] += 0.5
    meter.look()
    driver["time"] += 0.1
    assert meter.read().joules == 100.0  # of the whole second since the look before


def test_a_driver_that_says_nothing_any_more(driver):
    meter = UsageMeter()
    driver["time"] += 1.0
    assert meter.read().joules is None  # nobody has looked yet
    driver["milliwatts"] = None
    driver["time"] += 1.0
    meter.look()
    used = meter.read()
    assert used.joules is None
    assert (used.gpu_percent, used.gpu_memory_bytes) == ((50,), 2)


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
    assert used.joules is None or used.joules > 0  # it needs a package
    assert used.card == UsageMeter().read().card != ""
