"""The protocol of remote scorers: bodies of HTTP requests that no code can hide in.

A request holds B samples: ``prompt``, ``metadata``, an object of what else the prompt's row says,
and ``sample``, an image [H, W, 3] or a video [F, H, W, 3] of uint8. It is either

    application/vnd.apache.arrow.stream   an Arrow IPC stream of these columns; the metadata are
                                          JSON texts, the samples Arrow's fixed-shape tensors; or
    application/json                      {"prompts": [...], "metadata": [...], "samples": [...]};
                                          an image is a PNG file in base64, a video a list of them.

Where samples are edits there is the column ``source``, in JSON ``sources``, too: the images
[H, W, 3] that they are made of, in the same form. Where a prompt has several of them these are the
first ones, and the others are in ``more_sources``, a list for each sample, in Arrow of tensors; no
sample of a request has others where it is missing.

An answer is JSON: an object of lists of B numbers, of which "score" is the reward and the others
are components to look at.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from digen_core.data.prompts import Metadata
from digen_core.inputs.reading import load_json
from digen_core.inputs.text import number_of
from digen_core.rewards.pixels import as_file

ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"
CONTENT_TYPES: Final = {"arrow": ARROW, "json": JSON}

Pixels = NDArray[np.uint8]


class Request(NamedTuple):
    """What a scorer is asked."""

    samples: Pixels  # [B, H, W, 3] or [B, F, H, W, 3]
    prompts: Sequence[str]
    metadata: Sequence[Metadata]  # {} for a prompt whose row says nothing else
    sources: Pixels | None = None  # [B, H, W, 3] that samples are edits of, if they are
    more_sources: Sequence[Pixels] | None = None  # B of [n, H, W, 3], if a prompt has several

    def of(self, batch: slice) -> "Request":
        """Return what is asked about some of the samples."""
        sources = None if self.sources is None else self.sources[batch]
        more = None if self.more_sources is None else self.more_sources[batch]
        more = more if more is not None and any(map(len, more)) else None
        own = self.samples[batch], self.prompts[batch], self.metadata[batch]
        return Request(*own, sources, more)


def encode_request(request: Request, body: Literal["arrow", "json"]) -> bytes:
    """Return the body of a request."""
    if body == "arrow":
        columns = {
            "prompt": pa.array(request.prompts, pa.string()),
            "metadata": pa.array([json.dumps(row) for row in request.metadata], pa.string()),
            "sample": _tensors(request.samples),
        }
        if request.sources is not None:
            columns["source"] = _tensors(request.sources)
        if request.more_sources is not None:
            columns["more_sources"] = _lists_of_tensors(request.more_sources)
        batch = pa.record_batch(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data: bytes = sink.getvalue().to_pybytes()
        return data
    tree = {"prompts": list(request.prompts), "metadata": list(request.metadata)}
    tree["samples"] = [_to_text(sample) for sample in request.samples]
    if request.sources is not None:
        tree["sources"] = [_to_text(source) for source in request.sources]
    if request.more_sources is not None:
        tree["more_sources"] = [_to_text(several) for several in request.more_sources]
    return json.dumps(tree).encode()


def decode_request(data: bytes, content_type: str) -> Request:
    """Return what is asked: for servers in Python.

    Raises:
        ValueError: the content type is none of the protocol's, or the body is not what it says.
    """
    if content_type == ARROW:
        table = pa.ipc.open_stream(data).read_all().combine_chunks()
        metadata = [json.loads(text) for text in table["metadata"].to_pylist()]
        own = _pixels_of(table, "sample"), table["prompt"].to_pylist(), metadata
        names = table.schema.names
        sources = _pixels_of(table, "source") if "source" in names else None
        return Request(*own, sources, _lists_of(table) if "more_sources" in names else None)
    if content_type == JSON:
        tree = json.loads(data)
        own = _from_texts(tree["samples"]), tree["prompts"], tree["metadata"]
        sources = _from_texts(tree["sources"]) if "sources" in tree else None
        if "more_sources" not in tree or sources is None:
            return Request(*own, sources)
        nothing = np.empty((0, *sources.shape[1:]), np.uint8)
        more = [_from_texts(several) if several else nothing for several in tree["more_sources"]]
        return Request(*own, sources, more)
    raise ValueError(f"content type {content_type!r}; use {ARROW} or {JSON}")


def decode_answer(data: bytes, count: int) -> dict[str, list[float]]:
    """Return the columns of an answer for ``count`` samples; numbers may be NaN or Inf.

    Raises:
        ValueError: it is not what the protocol says.
    """
    try:
        tree = load_json(data.decode(json.detect_encoding(data), "surrogatepass"))
    except RecursionError as error:
        raise ValueError("answered lists in lists in lists, which JSON's reader cannot") from error
    if not isinstance(tree, Mapping) or "score" not in tree:
        raise ValueError(f"answered {_short(tree)}, not an object with a list 'score'")
    for name, values in tree.items():
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            raise ValueError(f"answered {_short(values)} as {name!r}, not a list of numbers")
        if len(values) != count:
            found, asked = number_of(len(values), "number"), number_of(count, "sample")
            raise ValueError(f"answered {found} as {name!r} for {asked}")
    try:
        return {str(name): [float(value) for value in values] for name, values in tree.items()}
    except OverflowError as error:
        raise ValueError("answered an integer that is too large for a number") from error


def _tensors(pixels: Pixels) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(pixels))


def _pixels_of(table: pa.Table, column: str) -> Pixels:
    pixels: Pixels = table[column].chunk(0).to_numpy_ndarray()
    return pixels


def _lists_of_tensors(lists: Sequence[Pixels]) -> pa.Array:
    """Return B lists of images of one size, [n, H, W, 3], some of them empty, but not all."""
    ends = np.cumsum([0, *map(len, lists)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _tensors(np.concatenate(lists)))


def _lists_of(table: pa.Table) -> list[Pixels]:
    column = table["more_sources"].chunk(0)
    pixels: Pixels = column.values.to_numpy_ndarray()
    return [pixels[start:end] for start, end in pairwise(column.offsets.to_numpy())]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _to_text(pixels: Pixels) -> str | list[Any]:
    if pixels.ndim == 4:
        return [_to_text(frame) for frame in pixels]
    return base64.b64encode(as_file(pixels, "png")).decode("ascii")


def _from_texts(samples: list[Any]) -> Pixels:
    return np.stack([_from_text(sample) for sample in samples])


def _from_text(sample: str | list[Any]) -> Pixels:
    if isinstance(sample, list):
        return np.stack([_from_text(frame) for frame in sample])
    with Image.open(BytesIO(base64.b64decode(sample))) as image:
        return np.asarray(image.convert("RGB"))
