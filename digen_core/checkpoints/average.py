"""The averaged weights in a checkpoint, read parameter by parameter: what a run is to export."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from digen_core.checkpoints.manifest import damaged, read_manifest
from digen_core.checkpoints.tensors import opened, rows_in
from digen_core.gang.members import ALONE
from digen_core.transport.fingerprint import Content, content_of, hash_of


class _Whole(Mapping[str, np.ndarray]):
    """Whole parameters by name, each read when it is asked for; what they hold is noted."""

    def __init__(self, checkpoint: Path, files: Sequence[Any], part: str) -> None:
        self._checkpoint, self._files = checkpoint, files
        names = [key.partition("/") for key in files[0].keys()]  # noqa: SIM118 - it is no dict
        self._keys = {name: f"{part}/{name}" for of, _, name in names if of == part}
        self.contents: dict[str, Content] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            value = rows_in(self._files, self._keys[name], ALONE)
        except (OSError, SafetensorError) as error:
            raise damaged(self._checkpoint, str(error)) from error
        self.contents[name] = content_of(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@contextmanager
def kept_average(checkpoint: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the averaged masters in a checkpoint, or its weights where there is no average.

    They are whole, however many members of a gang wrote them. The body is to ask for all of them,
    and to let nobody see what it makes of them before this has ended.

    Raises:
        DamagedError: the checkpoint is not what was written, as is found here after the body.
    """
    manifest = read_manifest(checkpoint)
    part = "ema" if "ema" in manifest.hashes else "weights"
    with opened(checkpoint, manifest) as files:
        found = _Whole(checkpoint, files, part)
        yield found
    if hash_of(found.contents) != manifest.hashes[part]:
        raise damaged(checkpoint, f"the content of {part} does not have the manifest's hash")
