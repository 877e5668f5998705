"""Receipts: what the flow hears of a task besides its result.

Results of tasks are big arrays that stay on the workers. What the flow has to know to decide what
comes next is small (seconds, rewards, a policy version) and travels as a *receipt*: where and when
the task ran, `Ran`, and the facts of its kind, one class below for each kind. The worker sends it
as msgpack over Dask's event stream, `tasks.runner.completions.Completions` hands it out in the flow
process, and `read` checks it there. This module imports neither Prefect nor Dask.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar, Final, Generic, TypeVar

import msgpack
from pydantic import (
    ConfigDict,
    StrictBool,
    StrictBytes,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails

from digen_core.planning.profile import Measured
from digen_core.trace.usage import Usage

MAX_RECEIPT_BYTES: Final = 16_777_216  # log-probs of 1024 samples at 1000 steps take less

Plain = dict[str, object]
"""A receipt as it is sent: ``ran`` and ``facts``, each a dict of plain values by field."""


class ReceiptError(ValueError):
    """A receipt is not what its task sends; the message names the fields and their values."""


class _Checked:
    """The base of what is read: a field that is unknown, NaN or Inf is refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Received(_Checked):
    """Bytes that another worker sent."""

    source: StrictStr  # its address
    num_bytes: StrictInt
    started: StrictFloat  # seconds since the epoch, by the receiver's clock
    ended: StrictFloat


@dataclass(frozen=True, slots=True)
class Ran(_Checked):
    """Where and when a task ran, what arrived for it, and what its process used."""

    device: StrictStr  # a pool's worker: its name
    started: StrictFloat  # seconds since the epoch, by the device's clock
    ended: StrictFloat
    num_bytes: StrictInt  # that other workers sent for it
    compile_seconds: StrictFloat = 0.0  # of its time, that torch.compile took
    usage: Usage | None = None  # since the task before it; None: no time has passed since then
    received: list[Received] = field(default_factory=list)  # the most of it, at a site

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.ended - self.started


# --- facts, by kind of task -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts(_Checked):
    """What one kind of task has to say."""


@dataclass(frozen=True, slots=True)
class Nothing(Facts):
    """Of a task of which only matters that, where and when it ran."""


@dataclass(frozen=True, slots=True)
class CountedTokens(Facts):
    """How long prompts are for the model."""

    most: StrictInt  # tokens of the longest
    num_cut: StrictInt  # prompts that have more than the model is given


@dataclass(frozen=True, slots=True)
class MeasuredCosts(Facts):
    """What work costs on the device."""

    measured: Measured


@dataclass(frozen=True, slots=True)
class ProbedRewards(Facts):
    """What a person should know of rewards that were called for the first time."""

    notes: list[StrictStr]  # a line each


@dataclass(frozen=True, slots=True)
class Sampled(_Checked):
    """What some denoising steps of a fragment recorded."""

    logprobs: dict[StrictInt, list[StrictFloat]] = field(default_factory=dict)
    """Noisy step -> of each sample."""
    step_values: dict[StrictInt, list[StrictFloat]] = field(default_factory=dict)
    """Trained step -> each sample's divergence from the reference policy, or its margin over it; of
    no step if nobody asked."""
    nonfinite: dict[StrictInt, StrictStr] = field(default_factory=dict)
    """Samples that became NaN or infinite, by their index in the group, and what of them."""


@dataclass(frozen=True, slots=True)
class Denoised(Facts):
    """What some denoising steps of a batch recorded."""

    version: StrictInt  # that generated
    seconds_per_step: StrictFloat
    sampled: list[Sampled]  # of each fragment
    num_parts: StrictInt = 1  # one after the other, if the samples did not fit into memory together
    num_apart: StrictInt = 1  # one after the other, as samples of the batch were not alike


@dataclass(frozen=True, slots=True)
class Scored(Facts):
    """What samples were found to be worth by the rewards of one worker."""

    rewards: dict[StrictStr, list[StrictFloat]]  # column -> of each sample, see `score_images`
    notes: list[StrictStr] = field(default_factory=list)  # of failures that end no run, the first
    pictures: list[StrictBytes] = field(default_factory=list)  # JPEGs of the samples that are shown
    nonfinite: dict[StrictInt, StrictStr] = field(default_factory=dict)  # as of `Sampled`


@dataclass(frozen=True, slots=True)
class Trained(Facts):
    """Whether a pack's gradient was added."""

    too_large: StrictBool  # it did not fit into memory, and added nothing


@dataclass(frozen=True, slots=True)
class HeldVersion(Facts):
    """A policy version that a worker has: made, restored, published or loaded."""

    version: StrictInt
    hash: StrictStr  # of the weights as they are there: masters, or in the dtypes of a push


@dataclass(frozen=True, slots=True)
class Pushed(HeldVersion):
    """What a device has of a version that was pushed to it."""

    failure: StrictStr  # why it does not hold it: its source is gone, or it arrived damaged; or ""


NOT_SHARED: Final = "the sums of its site were not to be had"
"""Failure of a sum that somebody else has told of."""


@dataclass(frozen=True, slots=True)
class Reduced(Facts):
    """Whether the sums of some devices are one."""

    failed: StrictInt  # index of the other device whose sum was not to be had; -1: all were
    failure: StrictStr  # why, or ""


@dataclass(frozen=True, slots=True)
class Updated(Facts):
    """The version that the optimizer made, and what the update measured."""

    version: StrictInt
    hash: StrictStr  # of its weights
    metrics: dict[StrictStr, StrictFloat]  # by name, ``train/...``
    skipped: StrictStr = ""  # why there is none, and version and hash are those of the one before


FactsT = TypeVar("FactsT", bound=Facts)
FactsT_co = TypeVar("FactsT_co", bound=Facts, covariant=True)


@dataclass(frozen=True, slots=True)
class Receipt(Generic[FactsT_co]):
    """What the flow hears of a task that succeeded."""

    ran: Ran
    facts: FactsT_co


# --- on the worker ----------------------------------------------------------------------------

_collected: ContextVar[Plain | None] = ContextVar("collected_receipt", default=None)
_PLAIN: Final = TypeAdapter(object)


def attach(part: Ran | Facts) -> None:
    """Make one of its two parts the running task's; a later one of the same part replaces it.

    Where nobody collects receipts (a body called in a test, or run by another task runner) this
    checks the part and drops it.

    Raises:
        TypeError: a value is not plain; NumPy and torch scalars are not.
        ValueError: the receipt would exceed `MAX_RECEIPT_BYTES`.
    """
    receipt = _collected.get()
    name = "ran" if isinstance(part, Ran) else "facts"
    merged: Plain = {**(receipt or {}), name: _PLAIN.dump_python(part)}
    try:
        num_bytes = len(packed(merged))
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"a receipt takes plain values only, not {part!r}: {error}") from error
    if num_bytes > MAX_RECEIPT_BYTES:
        raise ValueError(
            f"a receipt of {num_bytes} bytes exceeds {MAX_RECEIPT_BYTES}; "
            "return large values as the task's result instead"
        )
    if receipt is not None:
        receipt.update(merged)


def packed(receipt: Plain) -> bytes:
    """Return a receipt as msgpack."""
    found: bytes = msgpack.packb(receipt)
    return found


@contextmanager
def collecting() -> Iterator[Plain]:
    """Yield the dict into which `attach` writes inside this block."""
    receipt: Plain = {}
    token = _collected.set(receipt)
    try:
        yield receipt
    finally:
        _collected.reset(token)


def is_collecting() -> bool:
    """Say whether the caller runs inside a task whose receipt is collected."""
    return _collected.get() is not None


# --- in the flow process ----------------------------------------------------------------------

_RAN: Final = TypeAdapter(Ran)


def read(receipt: bytes, facts: TypeAdapter[FactsT]) -> Receipt[FactsT]:
    """Return what a worker sent.

    Args:
        receipt: as `packed` gave it.
        facts: of the task's kind.

    Raises:
        ReceiptError: it is no msgpack, or a field is unknown, missing, of another type, NaN or Inf.
    """
    parts = _unpacked(receipt)
    try:
        return Receipt(
            _RAN.validate_python(parts.get("ran", {})),
            facts.validate_python(parts.get("facts", {})),
        )
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors()))
        raise ReceiptError(f"{error.title}: {problems}") from error


def _unpacked(receipt: bytes) -> Plain:
    try:
        found: object = msgpack.unpackb(receipt, strict_map_key=False)  # steps are numbers
    except ValueError as error:
        raise ReceiptError(f"{len(receipt)} bytes are no msgpack: {error}") from error
    if not isinstance(found, dict):
        raise ReceiptError(f"its parts are no dict, but {found!r:.80}")
    return found


def _problem(item: ErrorDetails) -> str:
    """Say what is wrong with one field."""
    name = ".".join(map(str, item["loc"]))
    match item["type"]:
        case "missing":
            return f"{name} is missing"
        case "unexpected_keyword_argument":
            return f"{name} is unknown"
    return f"{name}: {item['msg']}, not {item['input']!r:.80}".removeprefix(": ")
