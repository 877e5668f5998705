"""Can the text that the prompt quotes be read in the image?

FlowGRPO's reward for rendering text (https://arxiv.org/abs/2505.05470):

    score = 1 - min(d, n) / n,   d = 0 if the read text contains the wanted one,
                                 else the Levenshtein distance between them,
                                 n = letters of the wanted text,

both in lower case and without spaces. FlowGRPO reads with PaddleOCR, this with RapidOCR, which runs
PaddleOCR's detection and recognition models in ONNX Runtime; its wheel holds the weights.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from digen_core.config.rewards.verifiers import OcrConfig
from digen_core.data.prompts import Metadata
from digen_core.inputs.reading import shown
from digen_core.rewards.pixels import as_pixels

_QUOTED: Final = re.compile(r'"([^"]*)"|“([^”]*)”')


class Ocr:
    """Scores images by how well the text that their prompts quote can be read in them."""

    def __init__(self, config: OcrConfig, device: torch.device) -> None:
        """Load the engine; it computes on the CPU, with as many threads as torch may use.

        Args:
            config: of the reward.
            device: unused.
        """
        from rapidocr import RapidOCR  # a second

        self._text_column = config.text_column
        self._engine: Any = RapidOCR(
            params={
                "Global.use_cls": False,  # text that lies on its head is not wanted text
                "Global.text_score": config.min_confidence,
                "Global.log_level": "error",  # an image without text is no reason to warn
                "EngineConfig.onnxruntime.intra_op_num_threads": torch.get_num_threads(),
            }
        )

    def __call__(
        self, images: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata] = ()
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W]: float64 [B] "score", and "exact", 1 if all could be read.

        Raises:
            ValueError: no text is asked for with a prompt.
        """
        column = self._text_column
        given = metadata or [{}] * len(prompts)
        wanted = [wanted_text(*pair, column) for pair in zip(prompts, given, strict=True)]
        read = [self.read(pixels) for pixels in as_pixels(images)]
        scores = [agreement(*pair) for pair in zip(wanted, read, strict=True)]
        score = torch.tensor(scores, dtype=torch.float64)
        return {"score": score, "exact": (score == 1).double()}

    def read(self, pixels: NDArray[np.uint8]) -> str:
        """Return the text in an image [H, W, 3], its lines from top to bottom in one string."""
        found = self._engine(np.ascontiguousarray(pixels[..., ::-1]))  # OpenCV's channel order
        return "".join(found.txts or ())


def wanted_text(prompt: str, metadata: Metadata, column: str | None) -> str:
    """Return the text that is to be read: of a column of the metadata, or what the prompt quotes.

    Raises:
        ValueError: there is none, or it is empty.
    """
    if column is None:
        return quoted_text(prompt)
    text = metadata.get(column)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"its {column!r} is {text!r}, but must be the text to be read")
    return text


def quoted_text(prompt: str) -> str:
    """Return the first text in double quotes, straight or curly.

    Raises:
        ValueError: there is none, or it is empty.
    """
    found = _QUOTED.search(prompt)
    text = (found[1] or found[2] or "") if found else ""
    if not text.strip():
        raise ValueError(
            f"the prompt {shown(prompt)} quotes no text to be read; write it in double "
            'quotes, as in a sign that says "Open"'
        )
    return text


def agreement(wanted: str, read: str) -> float:
    """Return the score in [0, 1] of the text ``read``."""
    wanted, read = _normal(wanted), _normal(read)
    distance = 0 if wanted in read else Levenshtein.distance(wanted, read)
    return 1 - min(distance, len(wanted)) / len(wanted)


def _normal(text: str) -> str:
    return "".join(text.split()).lower()
