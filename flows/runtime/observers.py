"""Observers: whoever watches the runs of this process, such as the terminal and Prefect's pages.

Listeners hear more, and more often: each event of the controller and what it says to that.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from digen_core.control.protocol import Event, Instruction
from digen_core.records import EvaluationReport, IterationRecord

T = TypeVar("T")


class Observer(Protocol):
    """Somebody who watches a run in this process, such as the terminal.

    Who watches only some of it inherits from this, where nothing is done.
    """

    def on_phase(self, text: str) -> None:
        """Something that takes a while begins."""
        return

    def on_step(self, done: int, total: int) -> None:
        """Some of the equal pieces of what began last are done."""
        return

    def on_warning(self, text: str) -> None:
        """Something is wrong that the run can live with."""
        return

    def on_open(self, run_dir: Path) -> None:
        """A run has its folder; from now on it can be resumed."""
        return

    def on_resume(self, num_iterations: int) -> None:
        """A run goes on after so many iterations: by a new process, or from a checkpoint."""
        return

    def on_stop(self, why: str) -> None:
        """Somebody stopped the run from elsewhere; it ends now."""
        return

    def on_iteration(self, record: IterationRecord) -> None:
        """An iteration is over."""
        return

    def on_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """A version was evaluated."""
        return


Listener = Callable[[Event | Instruction], None]
"""Called in the conductor's thread, before an instruction is carried out: the run waits for it."""

_observers: list[Observer] = []
_listeners: list[Listener] = []


def watching(observer: Observer) -> AbstractContextManager[None]:
    """Let somebody watch the runs of this process while the body runs."""
    return _among(_observers, observer)


def listening(listener: Listener) -> AbstractContextManager[None]:
    """Let somebody hear the controllers of this process while the body runs."""
    return _among(_listeners, listener)


@contextmanager
def _among(others: list[T], one: T) -> Iterator[None]:
    others.append(one)
    try:
        yield
    finally:
        others.remove(one)


def observers() -> tuple[Observer, ...]:
    """Return who watches."""
    return tuple(_observers)


def say(text: str) -> None:
    """Tell the observers what begins."""
    for observer in _observers:
        observer.on_phase(text)


def count(done: int, total: int) -> None:
    """Tell the observers how many pieces are done of what began."""
    for observer in _observers:
        observer.on_step(done, total)


def warn(text: str) -> None:
    """Tell the observers what is wrong, or what to do about it."""
    for observer in _observers:
        observer.on_warning(text)


@contextmanager
def forwarding(name: str) -> Iterator[None]:
    """Tell the observers what a logger warns of while the body runs: a terminal shows no log."""
    handler = _Forwarding(logging.WARNING)
    logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(name).removeHandler(handler)


class _Forwarding(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def stopped(why: str) -> None:
    """Tell the observers that somebody stopped the run."""
    for observer in _observers:
        observer.on_stop(why)


def tell(*heard: Event | Instruction) -> None:
    """Let the listeners hear what happened, and what is to be done."""
    for listener in _listeners:
        for what in heard:
            listener(what)
