"""A follower of a gang: a thread beside Dask's that does what the leader says."""

import logging
import os
from contextlib import suppress
from pkgutil import resolve_name
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn, Self

from digen_core.errors import UserError
from digen_core.gang.parts import Held, unpickled
from tasks.gang.channel import Channel
from tasks.gang.meeting import Awaited, Place
from tasks.gang.messages import Answer, Command, Done, Join, arguments_file
from tasks.gang.process_group import form_group, leave_group
from tasks.gang.received import take_received

logger = logging.getLogger(__name__)


class Following:
    """A follower's side of a gang: a thread that does what the leader says."""

    def __init__(self, place: Place, leader: str, key: bytes, before: Self | None) -> None:
        """Begin to wait for a leader.

        Args:
            place: of this process.
            leader: its host.
            key: that the leader knows, too.
            before: whom this process followed; what it is at is ended first.
        """
        self._interface = place.interface
        self._awaited = Awaited(place, leader, key)
        self.address = self._awaited.address  # where the leader is to call
        self._before = before
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
                    _follow(leader, self._interface)

    def stop(self) -> None:
        """Wait for no leader any more; one that is there ends this by itself."""
        self._awaited.stop()


class _Orders:
    """What a leader says, read while this member works: so it is noticed if the leader is gone."""

    def __init__(self, leader: Channel) -> None:
        self.is_busy = True  # with meeting the others
        self._leader = leader
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        Thread(target=self._read, name="gang's orders", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._commands.put(self._leader.receive())
        except (OSError, EOFError):
            if self.is_busy:
                _exit("the leader of the gang is gone, or has failed")
            self._commands.put(None)
        except Exception as error:  # by another version of digen on the leader's host
            _exit(f"what the leader of the gang says cannot be read: {error}")

    def next(self) -> Command | None:
        """Wait for a command; None: there are no more."""
        return self._commands.get()


def _follow(leader: Channel, interface: str) -> None:
    """Do what a leader says until it is gone.

    Args:
        leader: to which the channel is.
        interface: of the network in which this process is reached.
    """
    join: Join = leader.receive()
    orders = _Orders(leader)
    try:
        form_group(join, interface)
        orders.is_busy = False
        _do(orders, leader, join)
    finally:
        leave_group(join)


def _do(orders: _Orders, leader: Channel, join: Join) -> None:
    held = Held()
    while (command := orders.next()) is not None:
        orders.is_busy = True
        held.drop(command.dropped)
        try:
            arguments, parameters = _arguments_of(command, join, held)
            function = resolve_name(command.function)
            held.keep(command.number, function(*arguments, **parameters))
        except BaseException as error:
            logger.exception("what the gang did together failed here")
            leader.send(_sent(error))
            _exit("the gang cannot go on")
        del arguments, parameters  # memory that is not needed while waiting
        orders.is_busy = False
        leader.send(Done(take_received()))


def _exit(why: str) -> NoReturn:
    """End this process, which nothing else gets out of a collective; its nanny starts it again."""
    logger.error("%s: this worker ends, to be started again", why)
    logging.shutdown()
    os._exit(1)


def _arguments_of(command: Command, join: Join, held: Held) -> Any:
    found = command.arguments
    if found is None:
        found = arguments_file(join.folder, command.number).read_bytes()
    return unpickled(found, held)


def _sent(error: BaseException) -> Answer:
    """Return what the leader hears of a failure: what ends the run, with its text alone."""
    match error:
        case UserError():
            return UserError(str(error))
        case FloatingPointError():
            return FloatingPointError(str(error))
    return f"{type(error).__name__}: {error}"
