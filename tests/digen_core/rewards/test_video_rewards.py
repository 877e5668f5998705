"""Rewards of whole videos that VBench has, against its formulas on tiny models, and by hand."""

import numpy as np
import pytest
import torch

from digen_core.config.rewards.clip import ClipScoreConfig, ConsistencyConfig
from digen_core.config.rewards.clip import SubjectConsistencyConfig as SubjectConfig
from digen_core.errors import ConfigError
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.clip.clip import Clip
from digen_core.rewards.pixels import as_pixels, centre, shrunk
from digen_core.rewards.videos.consistency import Consistency, SubjectConsistency
from digen_core.rewards.videos.dino import DEVIATION, MEAN, Dino, stretched
from digen_core.rewards.videos.flickering import temporal_flickering
from support.tiny_models import write_clip, write_dino

CPU = torch.device("cpu")
VIDEOS = torch.rand(2, 4, 3, 48, 80, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return write_dino(tmp_path_factory.mktemp("dino"))


def weights(have: int, want: int, kernel) -> np.ndarray:
    """Return what makes ``want`` points of ``have``, [want, have], without smoothing before."""
    matrix = np.zeros((want, have))
    for row in range(want):
        at = (row + 0.5) * have / want - 0.5
        for near in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
            matrix[row, min(max(near, 0), have - 1)] += kernel(abs(at - near))
    return matrix


def bilinear(x: float) -> float:
    return max(0.0, 1 - x)


def bicubic(x: float, a: float = -0.75) -> float:
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def scaled(pixels, height: int, width: int, kernel) -> torch.Tensor:
    """Return pixels [N, H, W, 3] of uint8 in another size: [N, 3, height, width]."""
    down, along = (
        weights(have, want, kernel)
        for have, want in zip(pixels.shape[1:3], (height, width), strict=True)
    )
    return torch.tensor(np.einsum("ih,jw,nhwc->ncij", down, along, pixels.astype(float)))


def test_images_are_scaled_as_torchvision_does_without_antialiasing():
    pixels = as_pixels(VIDEOS[0])
    images = torch.from_numpy(pixels).movedim(-1, 1)
    for mode, kernel in (("bilinear", bilinear), ("bicubic", bicubic)):
        wide = shrunk(images, 31, mode)  # 80 * 31 / 48 is 51.67
        assert wide.shape == (4, 3, 31, 51)
        torch.testing.assert_close(wide.double(), scaled(pixels, 31, 51, kernel), rtol=0, atol=5e-3)
        high = shrunk(images.mT, 31, mode)
        torch.testing.assert_close(high.mT, wide, rtol=0, atol=5e-3)
    assert shrunk(images, 31, "bicubic").max() > 255  # what overshoots is kept
    cut = centre(images, 47, 31)  # an edge of half a pixel goes to the even number, 0, as there
    assert torch.equal(cut, images[..., :47, 24:55])


def transformed(folder: str, pixels) -> torch.Tensor:
    """Return the features of the first token of frames that need no other positions: [N, D]."""
    from transformers import ViTModel

    model = ViTModel.from_pretrained(folder, add_pooling_layer=False).eval()
    size = model.config.image_size
    size = (size, size) if isinstance(size, int) else size
    values = scaled(pixels, *size, bilinear) / 255 - torch.tensor(MEAN)[:, None, None]
    values = (values / torch.tensor(DEVIATION)[:, None, None]).float()
    with torch.no_grad():
        return model(values).last_hidden_state[:, 0]


def by_the_formula(features: torch.Tensor) -> float:
    """Return VBench's consistency of the frames of a video, by features [F, D]."""
    cosines = torch.nn.functional.cosine_similarity
    found = []
    for t in range(1, len(features)):
        to = [float(cosines(features[s], features[t], dim=0)) for s in (0, t - 1)]
        found.append(sum(max(0.0, one) for one in to) / 2)
    return float(np.mean(found))


def test_subject_consistency_is_the_mean_of_two_cosines_of_the_vit(folder):
    reward = SubjectConsistency(SubjectConfig(path=folder), CPU)
    square = VIDEOS[..., :48]
    wanted = [by_the_formula(transformed(folder, as_pixels(video))) for video in square]
    assert reward(square, ["a", "b"]).tolist() == pytest.approx(wanted, rel=1e-4)
    assert abs(wanted[0] - wanted[1]) > 1e-3
    still = VIDEOS[:, :1].expand(-1, 3, -1, -1, -1)
    assert reward(still, ["a", "b"]).tolist() == pytest.approx([1, 1], rel=1e-5)
    with pytest.raises(PermanentError, match="videos of 1 frames cannot be judged"):
        reward(still[:, :1], ["a", "b"])


def test_frames_that_are_not_square_have_the_positions_of_dino_s_own_program(folder, tmp_path):
    """Held against a ViT that was made for such frames, with those positions as its table."""
    from transformers import ViTModel

    table = ViTModel.from_pretrained(folder).embeddings.position_embeddings.detach()
    pixels = as_pixels(VIDEOS[0])  # 48 x 80, so 32 x 53, of which 4 x 6 patches are whole
    wide = write_dino(tmp_path)
    model = ViTModel.from_pretrained(wide, add_pooling_layer=False)
    model.config.image_size = (32, 53)
    model = ViTModel(model.config, add_pooling_layer=False)
    weights_of = ViTModel.from_pretrained(folder, add_pooling_layer=False).state_dict()
    positions = stretched(table, 4, 6)
    model.load_state_dict({**weights_of, "embeddings.position_embeddings": positions})
    model.save_pretrained(wide)
    found = Dino(SubjectConfig(path=folder, batch_size=3), CPU).embed(VIDEOS[0])
    wanted = torch.nn.functional.normalize(transformed(wide, pixels), dim=-1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_positions_are_stretched_by_a_tenth_of_a_patch_more_than_the_grid():
    grid = torch.rand(4, 4, generator=torch.Generator().manual_seed(1)).double()
    table = torch.cat([torch.tensor([7.0]).double(), grid.flatten()])[None, :, None]
    found = stretched(table, 4, 6)
    assert found.shape == (1, 25, 1)
    assert found[0, 0, 0] == 7

    def at(count: int) -> np.ndarray:
        matrix = np.zeros((count, 4))
        for row in range(count):
            place = (row + 0.5) * 4 / (count + 0.1) - 0.5
            for near in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
                matrix[row, min(max(near, 0), 3)] += bicubic(abs(place - near))
        return matrix

    np.testing.assert_allclose(found[0, 1:, 0].reshape(4, 6), at(4) @ grid.numpy() @ at(6).T)


def test_what_is_no_vit_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"^the ViT \S+nowhere cannot be loaded: "):
        Dino(SubjectConfig(path=str(tmp_path / "nowhere")), CPU)
    clip = write_clip(tmp_path)
    with pytest.raises(ConfigError, match=r"is no ViT of transformers: it lacks \d+ of its weigh"):
        Dino(SubjectConfig(path=clip), CPU)


def test_clip_sees_frames_that_were_not_smoothed(tmp_path):
    from transformers import CLIPModel, CLIPProcessor

    clip, images = write_clip(tmp_path), VIDEOS[0]
    model, own = CLIPModel.from_pretrained(clip), CLIPProcessor.from_pretrained(clip)
    cut = scaled(as_pixels(images), 32, 53, bicubic)[..., 10:42]  # 10.5 goes to the even number
    mean, deviation = (
        torch.tensor(each)[:, None, None]
        for each in (own.image_processor.image_mean, own.image_processor.image_std)
    )
    with torch.no_grad():
        seen = model.get_image_features(((cut / 255 - mean) / deviation).float()).pooler_output
    config = {"path": clip, "antialias": False}
    found = Clip(ClipScoreConfig(**config, batch_size=3), CPU).embed_images(images)
    wanted = torch.nn.functional.normalize(seen, dim=-1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    smooth = Clip(ClipScoreConfig(path=clip), CPU).embed_images(images)
    assert (smooth - wanted).abs().max() > 1e-2
    score = Consistency(ConsistencyConfig(**config), CPU)(images[None], ["a"])
    assert score.tolist() == pytest.approx([by_the_formula(seen)], rel=1e-4)


def test_a_processor_without_a_shorter_side_is_told(tmp_path):
    from transformers import CLIPImageProcessor

    clip = write_clip(tmp_path)
    CLIPImageProcessor(size={"height": 32, "width": 32}).save_pretrained(clip)
    (tmp_path / "processor_config.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"scales images to .* and not to a shortest_edge; use"):
        Clip(ClipScoreConfig(path=clip, antialias=False), CPU)


def test_temporal_flickering_by_hand():
    video = torch.zeros(2, 3, 3, 2, 2)
    video[0, 1, 0] = 51 / 255  # a third of the numbers change by 51, and back by 51
    video[1, 2] = 1  # nothing, then all of it
    found = temporal_flickering(video, ["a", "b"])
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([1 - 17 / 255, 0.5])
    assert temporal_flickering(video + 0.4 / 255, ["a", "b"]).tolist() == found.tolist()  # 8 bits
    pixels = as_pixels(VIDEOS).astype(float)
    wanted = 1 - np.abs(np.diff(pixels, axis=1)).mean(axis=(1, 2, 3, 4)) / 255
    np.testing.assert_allclose(temporal_flickering(VIDEOS, ["a", "b"]), wanted, rtol=1e-6)
    with pytest.raises(PermanentError, match="videos of 1 frames cannot be judged"):
        temporal_flickering(VIDEOS[:, :1], ["a", "b"])
