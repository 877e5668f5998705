"""Disks: what goes wrong with one names the folder that could not be written to."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safetensors import SafetensorError

from digen_core.config.load import CONFIG_OF_RUN
from digen_core.errors import UserError

DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class CannotWriteError(RuntimeError):
    """The run's folder cannot be written to; the message says which and why."""


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Name the folder that the body could not write to, as when its disk is full.

    Raises:
        CannotWriteError: in place of what the system or safetensors raises.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else None
        why = os.strerror(number) if number else str(error)
        named = CannotWriteError(f"cannot write to {folder}: {why}")
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named from error


@contextmanager
def naming_lost_folder(run_dir: Path) -> Iterator[None]:
    """Say that a run's folder is gone, if it is, in place of what failed for that.

    Raises:
        CannotWriteError: in place of any error that does not speak to the user.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (run_dir / CONFIG_OF_RUN).exists():
            raise
        raise CannotWriteError(
            f"the run's folder {run_dir} has gone while it was trained; if it was moved, go on "
            "with it there: digen train --resume FOLDER"
        ) from error


@contextmanager
def naming_full_disk(folder: Path) -> Iterator[None]:
    """Name the folder whose disk is full, broken or read-only; other errors are the body's own.

    Raises:
        CannotWriteError: in place of what the system raises.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        with naming(folder):
            raise
