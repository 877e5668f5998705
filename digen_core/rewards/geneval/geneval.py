"""GenEval's score of images, and FlowGRPO's, which is trained on.

GenEval (https://arxiv.org/abs/2310.11513) looks for the objects that a prompt names with a
detector, for their colours with CLIP, and compares their boxes. FlowGRPO
(https://arxiv.org/abs/2505.05470) trains on a score of the same for what is nearly right.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from digen_core.config.rewards.verifiers import GenevalConfig
from digen_core.data.prompts import Metadata
from digen_core.inputs.reading import listed
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.clip.clip import Clip
from digen_core.rewards.geneval.boxes import Found, surest
from digen_core.rewards.geneval.colours import Colours
from digen_core.rewards.geneval.detectors import ByClass, Detector
from digen_core.rewards.geneval.verdicts import Verdict, judged
from digen_core.rewards.geneval.wanted import Wanted, wanted_of
from digen_core.rewards.pixels import as_pixels


class Geneval:
    """Scores images by the objects in them."""

    def __init__(self, config: GenevalConfig, device: torch.device) -> None:
        """Load the detector and CLIP.

        Raises:
            ConfigError: one of them cannot be loaded.
        """
        self._config = config
        self._detector = Detector(
            config.detector, config.detector_revision, config.detector_batch_size, device
        )
        self._colours = Colours(Clip(config, device))

    def __call__(
        self, images: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W]: float64 [B] "score", and "partial", "correct" and "strict".

        Raises:
            PermanentError: a prompt's row asks for nothing, or for a class that the detector does
                not know.
        """
        wanted = [self._wanted(row) for row in metadata]
        pixels = list(as_pixels(images))
        config = self._config
        above = min(config.threshold, config.counting_threshold)
        found = self._detector(pixels, above)
        verdicts = [self._judge(*each) for each in zip(pixels, found, wanted, strict=True)]
        columns = {
            name: torch.tensor([getattr(each, name) for each in verdicts], dtype=torch.float64)
            for name in Verdict._fields
        }
        return {"score": columns[config.counts], **columns}

    def _wanted(self, row: Metadata) -> Wanted:
        try:
            wanted = wanted_of(row)
        except ValueError as error:
            raise PermanentError(str(error)) from error
        unknown = wanted.names - set(self._detector.classes)
        if unknown:
            raise PermanentError(
                f"the detector {self._config.detector} knows no {listed(sorted(unknown))}; it "
                f"knows {listed(self._detector.classes, 5)}"
            )
        return wanted

    def _judge(self, pixels: NDArray[np.uint8], found: ByClass, wanted: Wanted) -> Verdict:
        config = self._config
        is_counting = wanted.tag == "counting"
        objects: Mapping[str, list[Found]] = {
            name: surest(
                found.get(name, ()),
                above=config.counting_threshold if is_counting else config.threshold,
                most=config.max_objects,
                max_overlap=config.max_overlap,
            )
            for name in wanted.names
        }
        seen: dict[tuple[str, int], list[str]] = {}  # both ways to judge ask for the same

        def colours_of(name: str, ones: Sequence[Found]) -> list[str]:
            key = name, len(ones)
            if key not in seen:
                seen[key] = self._colours(pixels, name, ones)
            return seen[key]

        return judged(wanted, objects, colours_of, config.position_slack)
