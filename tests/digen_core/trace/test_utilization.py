"""Model FLOP utilisation and prices of an iteration, by hand."""

from dataclasses import replace

import pytest

from digen_core.control.protocol import Device
from digen_core.trace import prices as prices_module
from digen_core.trace.peaks import PEAK_TFLOPS, peak_of, processor_in
from digen_core.trace.prices import cost_metrics, price_per_second
from digen_core.trace.utilization import Arithmetic, mfu_metrics, peaks_of
from digen_core.trace.windows import Window
from support.trace_schedules import denoise, span

H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
WORK = Arithmetic(step=1e12, pair=3e12, decode=5e12)


def device(name: str, kind: str, size: int = 1) -> Device:
    return Device(name, frozenset({"rollout"}), kind, size)


DEVICES = [device("a", H100), device("b", f"{L40S} x2", 2)]
SPANS = [
    denoise("a", 0, 2, first=3, end=5, num_items=4, cost=1.5),  # 2 steps of 4 samples: 12 TFLOP
    span("score", "a", 2, 3, num_items=4),  # 20
    span("train", "b", 0, 4, num_items=8),  # 24
    span("push", "b", 4, 5),
]


def test_mfu_by_hand():
    assert mfu_metrics(WORK, SPANS, DEVICES, Window(0, 10)) == pytest.approx(
        {
            "throughput/mfu": 56 / (10 * (989 + 2 * 362)),
            "throughput/mfu_denoise": 12 / (2 * 989),
            "throughput/mfu_train": 24 / (4 * 2 * 362),
        }
    )


def test_what_did_not_happen_has_no_mfu():
    found = mfu_metrics(WORK, SPANS[1:2], DEVICES, Window(0, 10))
    assert found == {"throughput/mfu": pytest.approx(20 / (10 * (989 + 2 * 362)))}
    assert mfu_metrics(WORK, [], DEVICES, Window(0, 10)) == {}


def test_a_device_that_is_gone_is_left_out():
    """Its spans are there still, but nobody knows for how long it was."""
    gone = replace(SPANS[0], device="gone")
    found = mfu_metrics(WORK, [*SPANS, gone], DEVICES, Window(0, 10))
    assert found == mfu_metrics(WORK, SPANS, DEVICES, Window(0, 10))


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "?"])
def test_without_all_peaks_there_is_no_mfu(kind):
    assert peaks_of([*DEVICES, device("c", kind)]) is None
    assert mfu_metrics(WORK, SPANS, [*DEVICES, device("c", kind)], Window(0, 10)) == {}
    assert peaks_of([]) is None


@pytest.mark.parametrize("kind", [*PEAK_TFLOPS, "cpu"])
def test_a_gang_computes_on_what_its_members_do(kind):
    assert processor_in(f"{kind} x8") == processor_in(kind) == kind
    assert peak_of(kind) == PEAK_TFLOPS.get(kind, 0)


def test_prices_by_hand():
    """Both cards of the gang cost; what has no price of its own costs as the most expensive."""
    prices = {H100: 3.6, L40S: 0.9}
    assert price_per_second(prices, DEVICES) == pytest.approx((3.6 + 2 * 0.9) / 3600)
    assert price_per_second(prices, [device("c", "new")]) == pytest.approx(3.6 / 3600)
    assert price_per_second({"cpu": 0.0}, DEVICES) == 0
    assert price_per_second({}, DEVICES) == 0
    assert cost_metrics(0.5, 8.0, 16, 7.25) == {
        "cost/iteration": 4.0,
        "cost/per_sample": 0.25,
        "cost/total": 7.25,
    }


def test_the_price_of_a_kind_is_looked_up_once_however_many_devices_there_are(monkeypatch):
    """It is asked for whenever a task ends."""
    asked = []

    def looked_up(kind):
        asked.append(kind)
        return processor_in(kind)

    monkeypatch.setattr(prices_module, "processor_in", looked_up)
    devices = [device(f"d{number}", (H100, L40S)[number % 2]) for number in range(500)]
    assert price_per_second({}, devices) == 0
    assert asked == []
    assert price_per_second({H100: 3.6, L40S: 0.9}, devices) == pytest.approx(250 * 4.5 / 3600)
    assert sorted(asked) == [H100, L40S]
