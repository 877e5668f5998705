"""TensorBoard: event files in the run's folder ``tensorboard``.

They are made of what the run has logged, and made anew when it is resumed: so no step is in them
twice, and what a kill left half-written goes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from digen_core.config.run import RunConfig
from digen_core.transport.files import inside
from tasks.tracking.also.places import Point
from tasks.tracking.spool import Spool

FOLDER: Final = "tensorboard"
FILES: Final = "events.out.tfevents.*"


class EventFiles:
    """A run's curves and pictures as TensorBoard reads them."""

    first = 0

    def __init__(self, config: RunConfig, spool: Spool) -> None:
        """Begin anew."""
        folder = inside(spool.run_dir, FOLDER)
        for path in folder.glob(FILES):
            path.unlink()
        # A TensorBoard that shows the run forgets what it has read of it.
        self._writer = SummaryWriter(str(folder), purge_step=0)
        self._writer.add_text("config", f"    {config.model_dump_json(indent=2)}", 0)

    def log(self, point: Point, values: Mapping[str, float]) -> None:
        """Take metrics."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, point.step, point.seconds)

    def show(self, point: Point, name: str, picture: Path) -> None:
        """Take an image grid."""
        with Image.open(picture) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._writer.add_image(f"samples/{name}", pixels, point.step, dataformats="HWC")

    def flush(self, number: int) -> None:
        """Write what was taken."""
        self._writer.flush()

    def close(self, status: str) -> None:
        """Write what was taken, and take no more."""
        self._writer.close()
