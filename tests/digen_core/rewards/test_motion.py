import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, shift

from digen_core.config.rewards.pixels import MotionConfig
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.videos.motion import Motion, motion_between

SIDE = 64


def texture(seed: int) -> np.ndarray:
    values = gaussian_filter(np.random.default_rng(seed).normal(size=(SIDE, SIDE)), 3, mode="wrap")
    return (values - values.min()) / np.ptp(values)


def moving(step: float, num_frames: int = 5) -> list[np.ndarray]:
    """Return frames of a texture that moves by ``step`` pixels to the right, round and round."""
    still = texture(0)
    return [np.clip(shift(still, (0, step * t), mode="grid-wrap"), 0, 1) for t in range(num_frames)]


def judge(frames, enough: float = 0.01) -> dict[str, float]:
    video = torch.from_numpy(np.stack(frames))[None, :, None].expand(1, -1, 3, -1, -1)
    found = Motion(MotionConfig(enough=enough), torch.device("cpu"))(video, ["a"])
    assert all(values.shape == (1,) for values in found.values())
    return {name: values.item() for name, values in found.items()}


@pytest.mark.parametrize("step", [0.25, 0.5, 1.0, 2.0])
def test_the_magnitude_is_what_the_frames_are_shifted_by(step):
    found = judge(moving(step))
    assert found["magnitude"] == pytest.approx(step / SIDE, rel=0.12)
    assert found["coherence"] > 0.95
    assert found["persistence"] > 0.95


def test_the_field_points_where_things_go():
    still = texture(1) * 4
    field, _ = motion_between(still, shift(still, (1.0, -0.5), mode="grid-wrap"))
    np.testing.assert_allclose(np.median(field, axis=(1, 2)), [-0.5, 1.0], atol=0.05)


def test_a_still_video_scores_nothing():
    found = judge(moving(0.0))
    assert (found["score"], found["magnitude"]) == (0.0, 0.0)
    black = judge([np.zeros((SIDE, SIDE))] * 4)
    assert (black["score"], black["magnitude"]) == (0.0, 0.0)


def test_the_score_grows_with_the_motion_until_it_is_enough():
    scores = [judge(moving(step), enough=1 / SIDE)["score"] for step in (0.0, 0.25, 0.5, 0.9, 2.0)]
    assert scores == sorted(scores)
    np.testing.assert_allclose(scores, [0, 0.25, 0.5, 0.9, 1.0], atol=0.07)


CHEATS = {
    "noise": [np.random.default_rng(t).random((SIDE, SIDE)) for t in range(5)],
    "another picture in each frame": [texture(t) for t in range(5)],
    "contrast that flickers": [texture(0) * (0.7 + 0.3 * (t % 2)) for t in range(5)],
    "brightness that flickers": [texture(0) * 0.5 + 0.2 * (t % 2) for t in range(5)],
    "a still picture with 8-bit noise": [
        texture(0) + np.random.default_rng(t).uniform(-1, 1, (SIDE, SIDE)) / 255 for t in range(5)
    ],
    "trembling": [moving(1.0, 2)[t % 2] for t in range(6)],
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_changes_without_moving_on_scores_little(cheat):
    frames = np.clip(CHEATS[cheat], 0, 1)
    assert np.abs(np.diff(frames, axis=0)).mean() > 0.001  # frame differences would reward it
    assert judge(frames)["score"] < 0.05


def test_large_frames_are_judged_as_small_ones_are():
    small = moving(1.0)
    large = [np.kron(frame, np.ones((4, 4))) for frame in small]
    assert judge(large)["magnitude"] == pytest.approx(judge(small)["magnitude"], rel=1e-9)


def test_too_few_frames_are_refused():
    with pytest.raises(PermanentError, match="videos of 2 frames cannot be judged; use 3 or more"):
        judge(moving(1.0, 2))
