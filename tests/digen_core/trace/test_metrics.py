import pytest

from digen_core.trace.gaps import CAUSES, idle_gaps
from digen_core.trace.metrics import idle_shares, schedule_metrics
from digen_core.trace.windows import Window
from support.trace_schedules import denoise, devices_of, span

SPANS = [
    denoise("rollout-0", 0, 4),
    span("score", "rollout-0", 4, 5, group=0, fragment=0),
    span("score", "reward-0", 5, 6, group=0, fragment=1),
    span("train", "trainer-0", 6, 10),
]
"""Of 20 device seconds the trainer waits 4 (fill) + 2 (reward), the rollout device 1 + 4 (tail)."""
GAPS = idle_gaps(SPANS, devices_of(1, 1), Window(0, 10))


def test_idle_shares_are_of_all_device_seconds():
    metrics = schedule_metrics(GAPS, devices_of(1, 1), Window(0, 10), num_samples=5)
    idle = {cause: metrics.pop(f"idle/{cause}") for cause in CAUSES}
    expected = {**dict.fromkeys(CAUSES, 0), "fill": 0.2, "reward": 0.15, "tail": 0.2}
    assert idle == pytest.approx(expected)
    assert metrics == pytest.approx(
        {
            "device/rollout-0/busy_fraction": 0.5,
            "device/trainer-0/busy_fraction": 0.4,
            "throughput/samples_per_second": 0.5,
            "throughput/samples_per_device_second": 0.25,
        }
    )


def test_idle_shares_are_of_each_device():
    shares = idle_shares(GAPS, devices_of(1, 1), Window(0, 10))
    nothing = dict.fromkeys(CAUSES, 0)
    assert shares == {
        "rollout-0": {**nothing, "reward": 0.1, "tail": 0.4},
        "trainer-0": {**nothing, "fill": 0.4, "reward": 0.2},
    }


@pytest.mark.parametrize(("predicted", "error"), [(12.0, 0.2), (8.0, -0.2), (10.0, 0.0)])
def test_the_error_of_a_prediction_is_relative_to_what_was_measured(predicted, error):
    metrics = schedule_metrics(GAPS, devices_of(1, 1), Window(0, 10), 5, predicted)
    assert metrics["makespan/predicted_error"] == pytest.approx(error)


def test_no_devices_or_no_time_is_refused():
    with pytest.raises(ValueError, match="0 devices for 10 s"):
        schedule_metrics([], [], Window(0, 10), 5)
    with pytest.raises(ValueError, match="1 devices for 0 s"):
        schedule_metrics([], devices_of(1, 0), Window(3, 3), 5)
