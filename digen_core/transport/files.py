"""Files and folders that others may read at any time, never by half; locks between processes."""

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbelow
from time import monotonic, sleep
from typing import BinaryIO, Final, TextIO

from digen_core.errors import UserError

POLL_SECONDS: Final = 0.05
"""Between two tries of a lock."""

_UNFINISHED: Final = re.compile(r"\..+\.\d+(\.json\.gz)?")  # of a profile the end says how
_STILL_READ: Final = (errno.ENOTEMPTY, errno.EBUSY)


def replace_text(path: Path, text: str) -> None:
    """Write a file whole, and have it on disk before this returns; the folder must be there."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file whole, and have it on disk before this returns; the folder must be there."""
    with written_whole(path) as unfinished:
        unfinished.write_bytes(content)


@contextmanager
def written_whole(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a name for the body to write under; then the file of that name becomes ``path``.

    If the body fails, nothing of it stays. Readers of a data set skip the other name, which begins
    with a dot, and which nobody else has: containers that share a folder number processes alike.

    Args:
        path: of the file; one that is there is replaced.
        durable: Have the file and its name on disk before this returns, whatever the machine does.
    """
    unfinished = path.with_name(f".{path.name}.{randbelow(10**15)}")
    try:
        yield unfinished
        if durable:
            sync(unfinished)
        unfinished.replace(path)
        if durable:
            sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, and have it on disk before this returns; the folder must be there.

    Half a line at its end, of a writer that was killed, goes. One process at a time appends.

    Args:
        path: of the file; made if it is missing.
        line: without its end.
    """
    with appending(path) as append:
        append(line)


@contextmanager
def appending(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield what adds a line to a file, as ``append_line`` does, while no other process appends."""

    def append(line: str) -> None:
        end = _end_of_last_line(file)
        file.truncate(end)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        if not end:
            sync(path.parent)

    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield append


def _end_of_last_line(file: BinaryIO) -> int:
    position = file.seek(0, os.SEEK_END)
    while position:
        file.seek(position - 1)
        if file.read(1) == b"\n":
            return position
        position -= 1
    return 0


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, as far as they are missing, and have them on disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a new folder for the body to write into; then it becomes ``folder``, on disk.

    If the body fails, nothing of it stays.

    Args:
        folder: one that is there is replaced.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    make_folder(unfinished)
    try:
        yield unfinished
        for path in unfinished.rglob("*"):
            share(path)
        sync_all(unfinished)
        remove_folder(folder)
        unfinished.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for the body to write into, which becomes ``folder`` as a whole or not at all.

    Args:
        folder: as a person named it.

    Raises:
        UserError: the disk takes no more, or something that the body reads cannot be read.
    """
    from safetensors import SafetensorError

    try:
        with folder_written_whole(folder) as unfinished:
            yield unfinished
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {folder}: {' '.join(str(error).split())}") from error


def share(path: Path) -> None:
    """Let those read a file who may read its folder: safetensors writes for its own user alone."""
    allowed = path.parent.stat().st_mode & 0o666
    with suppress(FileNotFoundError):  # the unfinished file of a worker that was given up
        if (mode := path.stat().st_mode) & allowed != allowed:
            path.chmod(stat.S_IMODE(mode) | allowed)


def remove_folder(folder: Path) -> None:
    """Remove a folder if it is there; what is half-removed has another name, also on disk.

    On NFS something of that stays where somebody has a file of it open, until `remove_leftovers`.
    Of a link to a folder the link is removed, and what it leads to stays.
    """
    if folder.is_symlink():
        folder.unlink()
        sync(folder.parent)
        return
    going = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(going, ignore_errors=True)  # of a process that was killed
    if folder.exists():
        folder.rename(going)
        sync(folder.parent)  # else the old name may come back, of a folder that lacks files
        try:
            shutil.rmtree(going)
        except OSError as error:
            if error.errno not in _STILL_READ:
                raise


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes had half written, and half removed, in a folder and below it.

    Nobody may write there meanwhile.
    """
    for path in list(folder.rglob(".*")):
        if path.suffix in (".unfinished", ".removed"):
            shutil.rmtree(path, ignore_errors=True)
        elif _UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file or folder on disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Have a folder on disk before this returns, with all that is in it, but not its name."""
    for path in (*folder.rglob("*"), folder):
        with suppress(FileNotFoundError):  # the unfinished file of a worker that was given up
            sync(path)


def inside(folder: Path, name: str) -> Path:
    """Return a path in a folder that others may have made; neither it nor what is in it leads out.

    Raises:
        UserError: it does, by its name or by a link.
    """
    path, root = folder / name, folder.resolve()
    for part in (path, *(path.rglob("*") if path.is_dir() else ())):
        place = Path(os.path.realpath(part))  # of a link to itself, too, which resolve() refuses
        if not place.is_relative_to(root):
            raise UserError(
                f"{part} leads out of {folder}, to {place}, which is not read or written; "
                "was the folder made by somebody else?"
            )
    return path


@contextmanager
def try_lock(path: Path, *, shared: bool = False, seconds: float = 0.0) -> Iterator[bool]:
    """Yield whether no other process has the lock; then it is held while the body runs.

    A process that dies lets go. The file stays, with what its holder writes into it.

    Args:
        path: of the file; made if it is missing.
        shared: hold it beside others that share it.
        seconds: for which it is tried again.
    """
    kind, deadline = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, monotonic() + seconds
    with path.open("a") as file:
        while not (is_ours := _locks(file, kind)) and monotonic() < deadline:
            sleep(POLL_SECONDS)
        yield is_ours


def _locks(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
