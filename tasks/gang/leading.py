"""The leader of a gang: it takes the gang's tasks and tells the others what to do, in its order."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import sleep
from typing import Final, ParamSpec, TypeVar

from torch.distributed import ProcessGroup

from digen_core.errors import UserError
from digen_core.gang.parts import Held, pickled
from tasks.gang.channel import Channel, packed
from tasks.gang.meeting import UNIX, Place, call
from tasks.gang.messages import Answer, Command, Done, GangBrokenError, Join, arguments_file
from tasks.gang.process_group import abort_group, form_unless, leave_group
from tasks.gang.received import note_received

P = ParamSpec("P")
R = TypeVar("R")

INLINE_BYTES: Final = 1 << 20
"""Of a command's arguments: what is larger goes through a file, once for all near followers."""
ANSWER_SECONDS: Final = 0.5
"""How long a leader that fails itself waits to hear that a follower failed before."""
AGAIN_SECONDS: Final = 0.2
"""Until the group of a leader is aborted again, where it was not there: it is yet to be formed, or
hidden while memory is counted."""


class _Answers:
    """What followers answer, read while the leader works: so it is noticed if one has failed."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        """Prepare.

        Args:
            on_failure: is called, by another thread, when one has failed or is gone.
        """
        self._on_failure = on_failure
        self._answers: SimpleQueue[tuple[int, Answer | None]] = SimpleQueue()

    def of(self, rank: int, follower: Channel) -> None:
        """Begin to read those of a follower."""
        Thread(target=self._read, args=(rank, follower), name="gang's answers", daemon=True).start()

    def _read(self, rank: int, follower: Channel) -> None:
        answer: Answer | None = Done([])
        while isinstance(answer, Done):
            try:
                answer = follower.receive()
            except (OSError, EOFError):
                answer = None
            except Exception as error:  # by another version of digen on the follower's host
                answer = f"what it says cannot be read: {error}"
            self._answers.put((rank, answer))
        self._on_failure()

    def failure(self, count: int, seconds: float | None) -> Exception | None:
        """Return why a follower has not done the command; None: all have, or some are late.

        Where one fails, those that wait for it fail, too, or wait for ever: what says the most is
        returned. What was sent to those that have done it is noted.

        Args:
            count: of followers.
            seconds: to wait for an answer; None: as long as it takes.
        """
        found: Exception | None = None
        for _ in range(count):
            try:
                failure = _failure_in(*self._answers.get(timeout=seconds))
            except Empty:
                break
            if isinstance(failure, UserError | FloatingPointError):
                return failure
            if failure is not None:
                found, seconds = found or failure, ANSWER_SECONDS
        return found


def _failure_in(rank: int, answer: Answer | None) -> Exception | None:
    match answer:
        case Done():
            note_received(answer.received)
            return None
        case None:
            return GangBrokenError(f"member {rank} is gone")
        case str():
            return GangBrokenError(f"member {rank} failed: {answer}")
    failure: Exception = answer
    return failure


class Leading:
    """The leader's side of a gang."""

    def __init__(self, folder: Path, place: Place, addresses: Sequence[str], key: bytes) -> None:
        """Prepare; nobody is called before the first command.

        Args:
            folder: of its own.
            place: of this process.
            addresses: of the followers, as ``await_leader`` returned them.
            key: that they know, too.
        """
        self.is_calling = False
        self._place = place
        self._addresses, self._key = tuple(addresses), key
        self._followers: list[Channel] = []
        self._answers = _Answers(self._free)
        self._group: ProcessGroup | None = None
        self._join = Join(
            rank=0,
            size=len(addresses) + 1,
            folder=folder,
            near=(0, *(rank for rank, at in enumerate(addresses, 1) if at.startswith(UNIX))),
            store=None,
        )
        self._number = 0
        self._held = Held()
        self._is_over = False
        self._is_broken = False  # a follower has failed, or is gone

    def call(self, function: Callable[P, R], *arguments: P.args, **parameters: P.kwargs) -> R:
        """Call a function on all members and return what it returned here.

        Raises:
            GangBrokenError: another member failed or is gone.
            UserError: what the function raised on another member.
            FloatingPointError: the same.
            Exception: what the function raised here.
        """
        if self._is_over:
            raise GangBrokenError("the gang was broken before")
        self.is_calling = True
        try:
            return self._call(function, *arguments, **parameters)
        except BaseException:
            self._is_over = True
            raise
        finally:
            self.is_calling = False
            if self._is_over:
                self._close()

    def _call(self, function: Callable[P, R], *arguments: P.args, **parameters: P.kwargs) -> R:
        try:
            if not self._followers:
                self._meet()
            self._post(function, (arguments, parameters))
        except (OSError, EOFError, AuthenticationError) as error:
            not_whole = GangBrokenError(f"the gang is not whole: {error}")
            raise self._failure(seconds=ANSWER_SECONDS) or not_whole from error
        try:
            if self._is_broken:  # since the last command, which over TCP nobody was told
                raise GangBrokenError("a member is gone")
            result = function(*arguments, **parameters)
        except Exception as error:
            says_more = isinstance(error, UserError | FloatingPointError) and not self._is_broken
            if not says_more and (failure := self._failure(seconds=ANSWER_SECONDS)):
                raise failure from error
            raise
        if failure := self._failure(seconds=None):
            raise failure
        self._file(self._number).unlink(missing_ok=True)
        self._held.mark(self._number, result)
        return result

    def _meet(self) -> None:
        """Call the followers, and form the process group with them."""
        is_near = len(self._join.near) == self._join.size
        with nullcontext() if is_near else self._place.listener() as listener:
            if listener is not None:
                at = self._place.host, listener.getsockname()[1]
                self._join = replace(self._join, store=at)
            for rank, address in enumerate(self._addresses, start=1):
                follower = call(self._place, address, self._key)
                self._followers.append(follower)
                self._answers.of(rank, follower)
                follower.send(replace(self._join, rank=rank))
            self._group = form_unless(
                lambda: self._is_broken, self._join, self._place.host, listener
            )

    def _post(self, function: Callable[..., object], what: object) -> None:
        """Tell the followers what to call."""
        self._number += 1
        arguments = pickled(what)
        name = f"{function.__module__}:{function.__qualname__}"
        command = Command(self._number, name, arguments, self._held.take_dropped())
        inline = packed(command)
        near = inline
        if len(arguments) > INLINE_BYTES and len(self._join.near) > 1:
            self._file(self._number).write_bytes(arguments)
            near = packed(replace(command, arguments=None))
        for rank, follower in enumerate(self._followers, start=1):
            follower.send_bytes(near if rank in self._join.near else inline)

    def _file(self, number: int) -> Path:
        return arguments_file(self._join.folder, number)

    def _failure(self, seconds: float | None) -> Exception | None:
        return self._answers.failure(len(self._followers), seconds)

    def _free(self) -> None:
        """Have this process wait for no member any more, as one has failed or is gone.

        A collective of NCCL would wait for ever. Whatever it returns then is nonsense, and so is
        what is made of that. A group that this process forms later, in another gang, is left alone.
        """
        self._is_broken = True
        while self.is_calling and not abort_group(self._group):
            sleep(AGAIN_SECONDS)

    def end(self) -> None:
        """Let the followers go, when what they are at is done."""
        self._is_over = True
        if not self.is_calling:
            self._close()

    def _close(self) -> None:
        self._file(self._number).unlink(missing_ok=True)
        for follower in self._followers:
            follower.close()
        self._group = None  # kept, it would keep connections, of which others see the end
        called = tuple(rank for rank in self._join.near if rank <= len(self._followers))
        leave_group(replace(self._join, near=called))
