"""Form a gang of workers, each time before a model is loaded on it; and ask why it broke."""

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

from distributed import Client, Scheduler

from tasks.cluster.calls import (
    WorkerLostError,
    on_scheduler,
    on_worker,
    on_workers,
    silent_among,
)
from tasks.cluster.gpus import card, require_own_gpus, spares_without_own_gpu
from tasks.cluster.presence import KIND_SECONDS
from tasks.gang.messages import FAILED
from tasks.gang.together import await_leader, lead


def unfit_spares(
    client: Client, members: Sequence[str], spares: Collection[str], silence: float
) -> dict[str, str]:
    """Return which spares cannot be members of a gang: address -> why.

    Args:
        client: of the cluster.
        members: addresses of all, by rank.
        spares: addresses of those that have a place as a spare.
        silence: seconds without a heartbeat after which nobody is waited for.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    return spares_without_own_gpu(_cards(client, members, silence), members, spares)


def form_gang(
    client: Client, leader: str, followers: Sequence[str], silence: float = KIND_SECONDS
) -> None:
    """Make workers a gang, in place of what they were.

    The members meet when the leader's first task calls them; what a task of an earlier run still
    does on them is ended first, and what it told the user to change is forgotten.

    Args:
        client: of the cluster.
        leader: address of the worker that takes the tasks.
        followers: addresses of the others, in the order of their ranks.
        silence: seconds without a heartbeat after which nobody is waited for.

    Raises:
        WorkerLostError: one of them is gone, or does not answer.
        SchedulerLostError: the scheduler does not answer.
        UserError: two compute on the same GPU, or some on one and some on the CPU.
    """
    on_scheduler(client, _forget_told_by, followers=followers)
    members = [leader, *followers]
    cards = _cards(client, members, silence)
    require_own_gpus(cards, members)
    unknown = [address for address in members if address not in cards]
    if unknown and (silent := silent_among(client, unknown, silence)):
        raise WorkerLostError(f"the worker at {min(silent)} is silent")
    key = secrets.token_bytes(32)
    called = [_ask(client, follower, await_leader, leader, key) for follower in followers]
    _ask(client, leader, lead, called, key)


def _ask(client: Client, address: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Have a worker become a member.

    Raises:
        WorkerLostError: it is gone, does not answer, or cannot.
    """
    try:
        return on_worker(client, address, function, *arguments)
    except OSError as error:  # it is about to end, its disk is full, or it has no such address
        raise WorkerLostError(f"the worker at {address} cannot take part: {error}") from error


def _cards(client: Client, members: Sequence[str], silence: float) -> dict[str, str]:
    """Return the GPU of each member that says it in time."""
    asked: Any = _card  # is awaited there
    found: dict[str, str] = on_workers(
        client, members, asked, seconds=KIND_SECONDS, silence=silence
    )
    return found


async def _card() -> str:
    """Return `card`, which may take a while where nothing has used the GPU before."""
    return await asyncio.to_thread(card)


def told_by(client: Client, followers: Collection[str]) -> str | None:
    """Return what a user has to change, as one of some followers found in its gang, or None.

    Args:
        client: of the cluster.
        followers: their addresses; they may be gone.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    found: str | None = on_scheduler(client, _told_by, followers=set(followers))
    return found


def _told_by(followers: Collection[str], dask_scheduler: Scheduler) -> str | None:
    return next(iter(_texts(followers, dask_scheduler).values()), None)


def _forget_told_by(followers: Collection[str], dask_scheduler: Scheduler) -> None:
    for address in _texts(followers, dask_scheduler):  # of others nothing: few events are kept
        dask_scheduler.log_event(FAILED, {"address": address, "text": None})


def _texts(followers: Collection[str], dask_scheduler: Scheduler) -> dict[str, str]:
    """Return what followers have told, by their addresses."""
    told = {own["address"]: own["text"] for _, own in dask_scheduler.get_events(FAILED)}
    return {address: text for address in followers if (text := told.get(address))}
