"""Spans of schedules: single ones written down, and whole iterations of a toy scheduler."""

import heapq
from typing import Any

from digen_core.control.protocol import Device
from digen_core.records import Span, SpanKind


def span(
    kind: SpanKind,
    device: str,
    started: float,
    ended: float,
    iteration: int = 0,
    queued: float | None = None,
    **fields: Any,
) -> Span:
    """Return a span that was asked for when it started, if nothing else is said."""
    queued = started if queued is None else queued
    return Span(iteration, f"{kind} on {device}", kind, device, queued, started, ended, **fields)


def denoise(
    device: str,
    started: float,
    ended: float,
    group: int = 0,
    fragment: int = 0,
    first: int = 0,
    end: int = 1,
    version: int = 0,
    **fields: Any,
) -> Span:
    names = {"group": group, "fragment": fragment, "first_step": first, "end_step": end}
    return span("denoise", device, started, ended, version=version, **names, **fields)


def devices_of(num_rollout: int, num_trainers: int) -> list[Device]:
    return [
        *(Device(f"rollout-{n}", frozenset({"rollout"})) for n in range(num_rollout)),
        *(Device(f"trainer-{n}", frozenset({"trainer"})) for n in range(num_trainers)),
    ]


def pipeline(
    num_rollout: int,
    num_trainers: int,
    num_iterations: int = 1,
    latency: float = 0.02,
    reward: float = 0.3,
) -> list[Span]:
    """Return the spans of GAP iterations: groups in order, trained as soon as they are scored.

    Rewards come from a server of its own, "reward-0". A step is 0.2 s, a pack 0.5 s, the optimizer
    step 0.4 s, a push 0.6 s; every task starts ``latency`` seconds after its inputs.
    """
    spans, begin = [], 100.0
    rollouts = [device.name for device in devices_of(num_rollout, 0)]
    trainers = [device.name for device in devices_of(0, num_trainers)]
    for iteration in range(num_iterations):
        spans += _iteration(iteration, begin, rollouts, trainers, latency, reward)
        begin = max(s.ended for s in spans)
    return spans


def _iteration(
    iteration: int,
    begin: float,
    rollouts: list[str],
    trainers: list[str],
    latency: float,
    reward: float,
) -> list[Span]:
    spans, version, num_groups = [], iteration, max(4, len(rollouts) // 2)

    def add(kind: SpanKind, device: str, ready: float, seconds: float, **fields: Any) -> float:
        started = ready + latency
        fields.setdefault("version", version)
        spans.append(
            span(kind, device, started, started + seconds, iteration, queued=ready, **fields)
        )
        return started + seconds

    free = [(add("encode", device, begin, 0.1), device) for device in rollouts]
    heapq.heapify(free)
    packs = [(begin, device) for device in trainers]
    pairs = []
    for group in range(num_groups):
        scored = begin
        for fragment in range(4):
            ended, device = heapq.heappop(free)
            for step in range(6):
                steps = {"first_step": step, "end_step": step + 1}
                names = {"group": group, "fragment": fragment, "num_items": 6}
                ended = add("denoise", device, ended, 0.2 + 0.01 * group, **names, **steps)
            heapq.heappush(free, (ended, device))
            scored = max(scored, add("score", "reward-0", ended, reward, **names))
        pairs.append(scored)
    for index in range(len(pairs) * 4):
        free_at, device = heapq.heappop(packs)
        ended = add("train", device, max(free_at, pairs[index // 4]), 0.5, num_items=18)
        heapq.heappush(packs, (ended, device))
    reduced = add("reduce", trainers[0], max(packs)[0], 0.15)
    stepped = add("step", trainers[0], reduced, 0.4)
    published = add("publish", trainers[0], stepped, 0.05, version=version + 1)
    for number, device in enumerate([*rollouts, *trainers[1:]]):
        add("push", device, published, 0.6 + 0.01 * number, version=version + 1)
    return spans
