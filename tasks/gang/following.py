"""A follower of a gang: a thread beside Dask's that does what the leader says."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pkgutil import resolve_name
from queue import SimpleQueue
from threading import Event, Thread
from time import sleep
from typing import Any, Final, NoReturn, Self

from digen_core.checkpoints.manifest import DamagedError
from digen_core.errors import UserError
from digen_core.gang.parts import Held, unpickled
from tasks.gang.channel import Channel
from tasks.gang.meeting import Awaited, Place
from tasks.gang.messages import Answer, Command, Done, Join, arguments_file
from tasks.gang.process_group import form_group, leave_group
from tasks.gang.received import take_received

HEARD_SECONDS: Final = 2.0
"""Until a run has heard why a task of the gang's leader failed."""

logger = logging.getLogger(__name__)
_is_ending = Event()  # this process, soon


class Following:
    """A follower's side of a gang: a thread that does what the leader says."""

    def __init__(
        self,
        place: Place,
        leader: str,
        key: bytes,
        before: Self | None,
        tell: Callable[[str], None],
    ) -> None:
        """Begin to wait for a leader.

        Args:
            place: of this process.
            leader: its host.
            key: that the leader knows, too.
            before: whom this process followed; what it is at is ended first.
            tell: tells the run what a user has to change.

        Raises:
            ConnectionError: this process is about to end.
        """
        if _is_ending.is_set():
            raise ConnectionError("this worker is about to end, to be started again")
        self._host = place.host
        self._awaited = Awaited(place, leader, key)
        self.address = self._awaited.address  # where the leader is to call
        self._before = before
        self._tell = tell
        self.thread = Thread(target=self._run, name="gang", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        if self._before is not None:
            self._before.thread.join()
            self._before = None
        # Without a leader's call: it is gone, or another one is awaited.
        with suppress(OSError, EOFError):
            if leader := self._awaited.meet():
                with leader:
                    _follow(leader, self._host, self._tell)

    def stop(self) -> None:
        """Wait for no leader any more; one that is there ends this by itself."""
        self._awaited.stop()


class _Orders:
    """What a leader says, read while this member works: so it is noticed if the leader is gone."""

    def __init__(self, leader: Channel) -> None:
        self._begun, self._done = 1, 0  # it is to meet the others, and then to do what it hears
        self._leader = leader
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        Thread(target=self._read, name="gang's orders", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                command = self._leader.receive()
                self._begun += 1  # from here on, also if the leader is gone before it is taken
                self._commands.put(command)
        except (OSError, EOFError):
            if self.is_busy:
                _exit("the leader of the gang is gone, or has failed")
            self._commands.put(None)
        except Exception as error:  # by another version of digen on the leader's host
            _exit(f"what the leader of the gang says cannot be read: {error}")

    @property
    def is_busy(self) -> bool:
        """Whether something is to be done that is not, in which it would wait for the leader."""
        return self._begun > self._done

    def done(self) -> None:
        """Note that one thing more is done."""
        self._done += 1

    def next(self) -> Command | None:
        """Wait for a command; None: there are no more."""
        return self._commands.get()


def _follow(leader: Channel, host: str, tell: Callable[[str], None]) -> None:
    """Do what a leader says until it is gone.

    Args:
        leader: to which the channel is.
        host: by which this process is reached.
        tell: tells the run what a user has to change.
    """
    try:
        join: Join = leader.receive()
    except (OSError, EOFError):
        raise
    except Exception as error:  # by another version of digen on the leader's host
        _exit(f"what the leader of the gang says cannot be read: {error}")
    orders = _Orders(leader)
    try:
        try:
            form_group(join, host)
        except Exception as error:
            with suppress(OSError):  # the leader may be gone
                leader.send(str(error))
            _exit(f"the gang is not whole: {error}")
        orders.done()
        _do(orders, leader, join, tell)
    finally:
        leave_group(join)


def _do(orders: _Orders, leader: Channel, join: Join, tell: Callable[[str], None]) -> None:
    held = Held()
    while (command := orders.next()) is not None:
        held.drop(command.dropped)
        take_received()  # of a command of another gang, which failed
        try:
            arguments, parameters = _arguments_of(command, join, held)
            function = resolve_name(command.function)
            held.keep(command.number, function(*arguments, **parameters))
        except BaseException as error:
            if not _is_ending.is_set():  # else it failed as the leader did
                logger.exception("what the gang did together failed here")
                answer = _sent(error, join.rank)
                if isinstance(answer, UserError) and not isinstance(answer, DamagedError):
                    tell(str(answer))
                leader.send(answer)
            _exit("the gang cannot go on")
        del arguments, parameters  # memory that is not needed while waiting
        orders.done()
        leader.send(Done(take_received()))


def _exit(why: str) -> NoReturn:
    """End this process, which nothing else gets out of a collective; its nanny starts it again.

    It does so when the run has heard why its task failed: else it could find a member gone before.
    """
    if not _is_ending.is_set():
        _is_ending.set()
        logger.error("%s: this worker ends, to be started again", why)
    sleep(HEARD_SECONDS)
    logging.shutdown()
    os._exit(1)


def _arguments_of(command: Command, join: Join, held: Held) -> Any:
    found = command.arguments
    if found is None:
        found = arguments_file(join.folder, command.number).read_bytes()
    return unpickled(found, held)


def _sent(error: BaseException, rank: int) -> Answer:
    """Return what the leader hears of a failure: what ends the run, with its text alone."""
    match error:
        case DamagedError():  # another checkpoint may do
            return DamagedError(str(error))
        case UserError():
            return UserError(f"{error} (on member {rank} of the gang)")
        case FloatingPointError():
            return FloatingPointError(str(error))
    return f"{type(error).__name__}: {error}"
