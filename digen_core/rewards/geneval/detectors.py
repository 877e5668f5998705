"""Object detectors of transformers, by what they answer: boxes, or masks of instances."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from digen_core.errors import ConfigError
from digen_core.rewards.geneval.boxes import Found

_WITH_MASKS: Final = ("mask2former", "maskformer")
_NAMES: Final[Mapping[str, str]] = {
    "mouse": "computer mouse",
    "remote": "tv remote",
    "keyboard": "computer keyboard",
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
}
"""What GenEval calls classes of COCO, the last ones by the names of Pascal VOC."""

ByClass = dict[str, list[Found]]


class Detector:
    """A detector with its image processor."""

    def __init__(
        self, path: str, revision: str | None, batch_size: int, device: torch.device
    ) -> None:
        """Load it, in float32.

        Args:
            path: folder or hub id.
            revision: on the hub; None is the default branch.
            batch_size: images that it is given at once.
            device: that it computes on.

        Raises:
            ConfigError: it cannot be loaded, or is no detector.
        """
        from transformers import (
            AutoConfig,
            AutoImageProcessor,
            AutoModelForObjectDetection,
            AutoModelForUniversalSegmentation,
        )

        self._device, self._batch_size = device, batch_size
        try:
            config: Any = AutoConfig.from_pretrained(path, revision=revision)
            self._has_masks = config.model_type in _WITH_MASKS
            kind = (
                AutoModelForUniversalSegmentation
                if self._has_masks
                else AutoModelForObjectDetection
            )
            model: Any = kind.from_pretrained(path, revision=revision, dtype=torch.float32)
            self._processor: Any = AutoImageProcessor.from_pretrained(path, revision=revision)
        except (OSError, ValueError, ImportError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"the detector {path} cannot be loaded: {reason}") from error
        self._model = model.to(device).eval().requires_grad_(False)
        if self._has_masks:  # the processor stretches images to multiples of it, mmdet fills them
            self._multiple = self._processor.size_divisor or 1
            self._processor.size_divisor = 0
        self._classes = {
            int(index): _NAMES.get(name, name) for index, name in config.id2label.items()
        }

    @property
    def classes(self) -> list[str]:
        """Classes that it knows, by GenEval's names."""
        return list(self._classes.values())

    @torch.no_grad()
    def __call__(self, images: Sequence[NDArray[np.uint8]], above: float) -> list[ByClass]:
        """Return the objects in each of some images [H, W, 3], those with a score above one."""
        found: list[ByClass] = []
        for start in range(0, len(images), self._batch_size):
            batch = list(images[start : start + self._batch_size])
            inputs = self._processor(
                images=batch, return_tensors="pt", input_data_format="channels_last"
            ).to(self._device)
            sizes = [image.shape[:2] for image in batch]
            labelled = (self._masks if self._has_masks else self._boxes)(inputs, sizes, above)
            found.extend(self._by_class(each) for each in labelled)
        return found

    def _by_class(self, labelled: Sequence[tuple[int, Found]]) -> ByClass:
        found: ByClass = {}
        for label, one in labelled:
            if label in self._classes:
                found.setdefault(self._classes[label], []).append(one)
        return found

    def _boxes(
        self, inputs: Mapping[str, Tensor], sizes: Sequence[tuple[int, ...]], above: float
    ) -> list[list[tuple[int, Found]]]:
        answers = self._processor.post_process_object_detection(
            self._model(**inputs), threshold=above, target_sizes=sizes
        )
        return [
            [
                (label, Found(tuple(box), score))
                for label, box, score in zip(
                    *(answer[key].tolist() for key in ("labels", "boxes", "scores")), strict=True
                )
            ]
            for answer in answers
        ]

    def _masks(
        self, inputs: Mapping[str, Tensor], sizes: Sequence[tuple[int, ...]], above: float
    ) -> list[list[tuple[int, Found]]]:
        values, insides = (
            _filled(inputs[name], self._multiple) for name in ("pixel_values", "pixel_mask")
        )
        answer = self._model(pixel_values=values, pixel_mask=insides)
        padded = values.shape[-2:]
        rows = zip(
            answer.class_queries_logits, answer.masks_queries_logits, insides, sizes, strict=True
        )
        return [
            instances(logits, masks, padded, _extent(inside), size, above)
            for logits, masks, inside, size in rows
        ]


def _filled(images: Tensor, multiple: int) -> Tensor:
    """Return images [..., H, W] with zeros below and beside them: sides are multiples of one."""
    height, width = images.shape[-2:]
    return functional.pad(images, (0, -width % multiple, 0, -height % multiple))


def _extent(inside: Tensor) -> tuple[int, int]:
    """Return the height and width of an image in its padded place, [H, W] of 0 and 1."""
    return int(inside.any(dim=1).sum()), int(inside.any(dim=0).sum())


def instances(
    logits: Tensor,
    masks: Tensor,
    padded: Sequence[int],
    extent: Sequence[int],
    size: Sequence[int],
    above: float,
) -> list[tuple[int, Found]]:
    """Return the instances that Mask2Former's queries say are in an image, with their classes.

    As the detector that GenEval was published with does: the best Q pairs of a query and a class;
    a pixel belongs to a mask whose logit is above 0 there; the score is the probability of the
    class times the mean of the mask's over its pixels.

    Args:
        logits: [Q, C + 1] of each query, the last one for no object.
        masks: [Q, h, w], logits.
        padded: height and width of what the model was given.
        extent: of the image in it, at the top left.
        size: height and width of the image itself.
        above: score that is exceeded.
    """
    chances = logits.softmax(dim=-1)[:, :-1]
    best, places = chances.flatten().topk(min(len(chances), chances.numel()))
    places, best = places[best > above], best[best > above]  # a mask makes a score smaller
    found = []
    for place, chance in zip(places.tolist(), best.tolist(), strict=True):
        query, label = divmod(place, chances.shape[1])
        mask = _resized(masks[query], padded, extent, size)
        inside = mask > 0
        if not inside.any():
            continue
        score = chance * mask[inside].sigmoid().mean().item()
        if score > above:
            found.append((label, Found(_box_of(inside), score, inside.cpu().numpy())))
    return found


def _resized(
    mask: Tensor, padded: Sequence[int], extent: Sequence[int], size: Sequence[int]
) -> Tensor:
    """Return a mask [h, w] in the size of its image."""
    for cut, target in ((None, padded), (extent, size)):
        if cut is not None:
            mask = mask[: cut[0], : cut[1]]
        mask = functional.interpolate(
            mask[None, None], tuple(target), mode="bilinear", align_corners=False
        )[0, 0]
    return mask


def _box_of(inside: Tensor) -> tuple[float, float, float, float]:
    """Return the box around the pixels of a mask; right and bottom are just outside of it."""
    rows, columns = (inside.any(dim=axis).nonzero().flatten() for axis in (1, 0))
    return (
        float(columns[0]),
        float(rows[0]),
        float(columns[-1] + 1),
        float(rows[-1] + 1),
    )
