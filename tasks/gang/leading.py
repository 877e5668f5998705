"""The leader of a gang: it takes the gang's tasks and tells the others what to do, in its order."""

from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from digen_core.errors import UserError
from digen_core.gang.parts import Held, pickled
from tasks.gang.messages import Command, Done, GangBrokenError, Join, arguments_file
from tasks.gang.process_group import form_group, leave_group
from tasks.gang.received import note_received

P = ParamSpec("P")
R = TypeVar("R")

INLINE_BYTES: Final = 1 << 20
"""Of a command's arguments: what is larger goes through a file, once for all followers."""
ANSWER_SECONDS: Final = 0.5
"""How long a leader that fails itself waits to hear that a follower failed before."""


class Leading:
    """The leader's side of a gang."""

    def __init__(self, folder: Path, addresses: Sequence[str], key: bytes) -> None:
        """Prepare; nobody is called before the first command.

        Args:
            folder: of its own.
            addresses: of the followers, as ``await_leader`` returned them.
            key: that they know, too.
        """
        self.is_calling = False
        self._addresses, self._key = tuple(addresses), key
        self._followers: list[Connection] = []
        self._folder = folder
        self._number = 0
        self._held = Held()
        self._is_over = False

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
                self._join()
            self._post(function, (arguments, parameters))
        except (OSError, EOFError, AuthenticationError) as error:
            raise GangBrokenError(f"a member of the gang is gone: {error}") from error
        try:
            result = function(*arguments, **parameters)
        except Exception as error:
            if failure := self._failure(seconds=ANSWER_SECONDS):
                raise failure from error
            raise
        if failure := self._failure(seconds=None):
            raise failure
        self._file(self._number).unlink(missing_ok=True)
        self._held.mark(self._number, result)
        return result

    def _join(self) -> None:
        size = len(self._addresses) + 1
        for rank, address in enumerate(self._addresses, start=1):
            follower = Client(address, authkey=self._key)
            follower.send(Join(self._folder, rank, size))
            self._followers.append(follower)
        form_group(self._folder, 0, size)

    def _post(self, function: Callable[..., object], call: object) -> None:
        """Tell the followers what to call."""
        self._number += 1
        arguments = pickled(call)
        is_small = len(arguments) <= INLINE_BYTES
        if not is_small:
            self._file(self._number).write_bytes(arguments)
        name = f"{function.__module__}:{function.__qualname__}"
        dropped = self._held.take_dropped()
        command = Command(self._number, name, arguments if is_small else None, dropped)
        for follower in self._followers:
            follower.send(command)

    def _file(self, number: int) -> Path:
        return arguments_file(self._folder, number)

    def _failure(self, *, seconds: float | None) -> Exception | None:
        """Return why a follower has not done the command; None: all have.

        Where one fails, those that wait for it fail, too: what says the most is returned. What was
        sent to those that have done it is noted.

        Args:
            seconds: to wait for the answer of each; None: as long as it takes.
        """
        found: Exception | None = None
        for rank, follower in enumerate(self._followers, start=1):
            failure = self._failure_of(rank, follower, ANSWER_SECONDS if found else seconds)
            if isinstance(failure, UserError | FloatingPointError):
                return failure
            found = found or failure
        return found

    def _failure_of(
        self, rank: int, follower: Connection, seconds: float | None
    ) -> Exception | None:
        try:
            answer = follower.recv() if follower.poll(seconds) else None
        except (EOFError, OSError):
            return GangBrokenError(f"member {rank} is gone")
        match answer:
            case Done():
                note_received(answer.received)
                return None
            case str():
                return GangBrokenError(f"member {rank} failed: {answer}")
        failure: Exception | None = answer
        return failure

    def end(self) -> None:
        """Let the followers go, when what they are at is done."""
        self._is_over = True
        if not self.is_calling:
            self._close()

    def _close(self) -> None:
        self._file(self._number).unlink(missing_ok=True)
        for follower in self._followers:
            follower.close()
        leave_group(self._folder, 0, len(self._followers) + 1)  # of those that were called
