"""DINO's vision transformer: what frames are compared by.

Caron et al. 2021 (https://arxiv.org/abs/2104.14294). The model is transformers' ViT. Frames reach
it as in VBench (https://arxiv.org/abs/2311.17982): scaled to the shorter side that it was trained
with, without smoothing and without cutting, so its positions are stretched to other grids.
"""

from functools import partial
from math import isqrt
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from digen_core.config.rewards.clip import SubjectConsistencyConfig
from digen_core.errors import ConfigError
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.rewards.pixels import in_steps, shrunk, standardized

MEAN: Final = (0.485, 0.456, 0.406)
DEVIATION: Final = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels in [0, 1], as DINO was trained with."""
_MORE: Final = 0.1  # of a patch: what DINO's own program stretches further than to the grid


class Dino:
    """A ViT of DINO; features have length 1."""

    def __init__(self, config: SubjectConsistencyConfig, device: torch.device) -> None:
        """Load the model.

        Raises:
            ConfigError: it cannot be loaded, or is no ViT.
        """
        from transformers import ViTModel

        self._device, self._batch_size = device, config.batch_size
        try:
            model, found = ViTModel.from_pretrained(
                config.path, revision=config.revision, dtype=TORCH_DTYPES[config.dtype],
                add_pooling_layer=False, output_loading_info=True,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"the ViT {config.path} cannot be loaded: {reason}") from error
        if missing := sorted(found["missing_keys"]):
            raise ConfigError(
                f"{config.path} is no ViT of transformers: it lacks {len(missing)} of its weights, "
                f"the first being {missing[0]}; use facebook/dino-vitb16 or one like it"
            )
        self._model: Any = model.to(device).eval().requires_grad_(False)
        embeddings = self._model.embeddings
        self._side = min(embeddings.image_size)
        embeddings.interpolate_pos_encoding = partial(
            _positions, embeddings.position_embeddings, embeddings.patch_size
        )

    @torch.no_grad()
    def embed(self, frames: Tensor) -> Tensor:
        """Return the features [N, D] of frames [N, 3, H, W] in [0, 1], in float32."""
        parts = []
        for some in frames.split(self._batch_size):
            small = shrunk(in_steps(some.float()).to(self._device), self._side, "bilinear")
            values = standardized(small, MEAN, DEVIATION)
            states = self._model(values, interpolate_pos_encoding=True).last_hidden_state
            parts.append(functional.normalize(states[:, 0].float(), dim=-1))
        return torch.cat(parts)


def _positions(table: Tensor, patch: int, tokens: Tensor, height: int, width: int) -> Tensor:
    """Return the positions of what an image is made into, in place of transformers' own.

    Args:
        table: [1, 1 + n * n, D], of the size that the model was trained with.
        patch: pixels of its sides.
        tokens: [N, 1 + rows * columns, D].
        height: of the image, in pixels.
        width: of the image.
    """
    if tokens.shape[1] == table.shape[1] and height == width:
        return table
    return stretched(table, height // patch, width // patch)


def stretched(table: Tensor, rows: int, columns: int) -> Tensor:
    """Return positions [1, 1 + n * n, D] for another grid: [1, 1 + rows * columns, D]."""
    side = isqrt(table.shape[1] - 1)
    grid = table[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((rows + _MORE) / side, (columns + _MORE) / side)
    grid = functional.interpolate(grid, scale_factor=scale, mode="bicubic", align_corners=False)
    return torch.cat([table[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)
