"""Receipts: what a body says arrives as it was said, and nothing else does."""

import dataclasses
import math
from importlib import import_module
from inspect import signature
from pkgutil import walk_packages
from typing import get_args

import msgpack
import numpy as np
import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.settings import (
    PREFECT_RESULTS_PERSIST_BY_DEFAULT,
    PREFECT_TASKS_DEFAULT_RETRIES,
    temporary_settings,
)
from pydantic import TypeAdapter

import tasks
from digen_core.control.costs import Linear
from digen_core.planning.profile import Measured
from digen_core.trace.usage import Usage
from tasks import receipts
from tasks.body import Body, body
from tasks.emulation import EMULATED
from tasks.receipts import Facts, Nothing, Ran, Receipt, ReceiptError, attach, collecting, packed
from tasks.runner.pickling import dump_call, load_call
from tasks.workers import EmulatedWorkers

CAME = receipts.Received("tcp://127.0.0.1:4321", 7, 1.25, 1.5)
RAN = Ran("rollout-0", 1.5, 2.0, 7, 0.25, Usage(0.5, 0.25, 4096, (12.0, 13.5), 8192), [CAME])
EXAMPLES = (
    Nothing(),
    receipts.CountedTokens(most=31, num_cut=2),
    receipts.MeasuredCosts(Measured(step=Linear(fixed=0.5, per_item=0.25), pack=Linear())),
    receipts.ProbedRewards(["aesthetic: took 3 s"]),
    receipts.Denoised(
        4,
        0.125,
        [receipts.Sampled({0: [-0.5, -0.25], 7: [-1.0, -2.0]}, {7: [0.5, 0.25]}, {3: "KL"})],
        1,
    ),
    receipts.Scored({"reward": [1.0, 0.0]}, ["ocr: no answer"], [b"\xff\xd8\xff"], {1: "pixels"}),
    receipts.Trained(too_large=True),
    receipts.HeldVersion(3, "0123456789abcdef"),
    receipts.Pushed(3, "0123456789abcdef", "tcp://127.0.0.1:4321 does not answer"),
    receipts.Reduced(1, "it arrived damaged"),
    receipts.Updated(4, "0123456789abcdef", {"train/loss": -0.5, "train/kl": 0.25}, "it is nan"),
)
BY_KIND = pytest.mark.parametrize("facts", EXAMPLES, ids=lambda facts: type(facts).__name__)


def bodies_and_tasks():
    """The bodies of the package, by module and name, and the Prefect tasks that are none."""
    names = [module.name for module in walk_packages(tasks.__path__, "tasks.")]
    found = [(module, *item) for module in names for item in vars(import_module(module)).items()]
    bodies = {(m, name): value for m, name, value in found if isinstance(value, Body)}
    own = {place: value for place, value in bodies.items() if place[0] == value.fn.__module__}
    return own, [(m, name) for m, name, value in found if isinstance(value, Task)]


BODIES, BARE_TASKS = bodies_and_tasks()
DECLARED = [value for value in vars(receipts).values() if isinstance(value, type)]
KINDS = [kind for kind in DECLARED if issubclass(kind, Facts) and kind is not Facts]


def test_a_task_is_done_as_often_as_it_is_asked_for():
    """Whatever the user has set for other tasks: each changes a worker, where its result stays."""
    settings = {PREFECT_TASKS_DEFAULT_RETRIES: 3, PREFECT_RESULTS_PERSIST_BY_DEFAULT: True}
    with temporary_settings(settings):
        task = body("draw", receipts.Nothing)(lambda count, label: (count, Nothing())).task
    assert task.retries == 0
    assert task.persist_result is False
    assert task.cache_policy == NO_CACHE


def sent(*parts):
    """What a task sends that attached these parts, of dicts and lists only."""
    with collecting() as receipt:
        for part in parts:
            attach(part)
    return msgpack.unpackb(packed(receipt), strict_map_key=False)


def read(receipt, facts):
    """Read what was sent as the facts of some kind."""
    return receipts.read(packed(receipt), TypeAdapter(type(facts)))


def leaves(value, path=()):
    """The places of all plain values in a tree of them."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def with_leaf(tree, path, value):
    *way, last = path
    for key in way:
        tree = tree[key]
    tree[last] = value


# --- kinds ------------------------------------------------------------------------------------


def test_every_task_of_the_package_is_a_body_with_facts_of_its_own_kind():
    assert BARE_TASKS == []
    assert len(BODIES) > 25
    for place, each in BODIES.items():
        kind = each.facts._type
        assert issubclass(kind, Facts), place
        assert get_args(signature(each.function).return_annotation)[1] is kind, place


def test_every_kind_of_facts_is_some_bodys_and_has_an_example_here():
    assert {each.facts._type for each in BODIES.values()} == set(KINDS)
    assert {type(facts) for facts in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("kind", [Ran, Receipt, *KINDS], ids=lambda kind: kind.__name__)
def test_they_cannot_be_changed(kind):
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
    assert not hasattr(object.__new__(kind), "__dict__")


def test_emulated_bodies_say_what_real_ones_say():
    real = {each.name: each for (m, _), each in BODIES.items() if m != "tasks.emulation"}
    workers = EmulatedWorkers.__new__(EmulatedWorkers)
    for name, emulated in EMULATED.items():
        if name != "switch":  # which real devices need not do
            assert workers.body(real[name]) is emulated
            assert emulated.facts._type is real[name].facts._type


# --- there and back ---------------------------------------------------------------------------


@BY_KIND
def test_what_is_read_is_what_was_attached(facts):
    receipt = read(sent(RAN, facts), facts)
    assert receipt == Receipt(RAN, facts)
    assert receipt.ran.seconds == 0.5


def test_a_body_is_its_function_and_its_task_attaches_what_that_returns():
    @body("double", receipts.CountedTokens)
    def double(run_id: str, label: str, x: int) -> tuple[int, receipts.CountedTokens]:
        """Double it."""
        attach(RAN)
        return 2 * x, receipts.CountedTokens(x, 0)

    assert double("run", "label", 3) == (6, receipts.CountedTokens(3, 0))
    assert repr(double) == "Body('double')"
    assert (double.name, double.task.task_run_name) == ("double", "{label}")
    assert double.task.description == "Double it."
    with collecting() as receipt:
        assert double.fn("run", "label", 3) == 6
    assert double.read(packed(receipt)) == Receipt(RAN, receipts.CountedTokens(3, 0))


def test_a_body_of_the_package_travels_by_name():
    for (module, name), each in BODIES.items():
        blob, _ = dump_call(each.task)
        assert module.encode() in blob
        assert name.encode() in blob
        assert load_call(blob, ()).fn is each.fn


def test_a_later_part_replaces_an_earlier_one():
    later = dataclasses.replace(RAN, device="rollout-1")
    receipt = sent(RAN, receipts.HeldVersion(3, "a"), receipts.HeldVersion(4, "b"), later)
    newest = receipts.HeldVersion(4, "b")
    assert read(receipt, newest) == Receipt(later, newest)


def test_nobody_collects():
    attach(RAN)
    attach(Nothing())


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.float32(1), object(), {1, 2}])
def test_only_plain_values(value):
    with collecting() as receipt, pytest.raises(TypeError, match="plain values"):
        attach(receipts.HeldVersion(value, ""))
    assert receipt == {}


def test_a_receipt_has_room_for_the_largest_batch_in_one_task():
    sampled = [receipts.Sampled({step: [0.5] * 64 for step in range(1000)}, {}, {})] * 16
    with collecting() as receipt:
        attach(receipts.Denoised(0, 1.0, sampled, 1, 1))
    assert len(packed(receipt)) > 1024 * 1000


def test_large_receipts_are_refused():
    with collecting(), pytest.raises(ValueError, match=str(receipts.MAX_RECEIPT_BYTES)):
        attach(receipts.Scored({}, pictures=[bytes(receipts.MAX_RECEIPT_BYTES)]))


@BY_KIND
@pytest.mark.parametrize("part", ["ran", "facts"])
def test_a_field_too_many_or_too_few_is_refused(facts, part):
    whole = sent(RAN, facts)
    name = "Ran" if part == "ran" else type(facts).__name__
    extra = {**whole, part: {**whole[part], "colour": 1}}
    with pytest.raises(ReceiptError, match=rf"^{name}: colour is unknown$"):
        read(extra, facts)
    for field in dataclasses.fields(RAN if part == "ran" else facts):
        optional = field.default is not field.default_factory  # one of them is given
        less = {key: value for key, value in whole[part].items() if key != field.name}
        if optional:
            read({**whole, part: less}, facts)
            continue
        with pytest.raises(ReceiptError, match=rf"^{name}: {field.name} is missing$"):
            read({**whole, part: less}, facts)


@BY_KIND
def test_a_value_of_another_type_and_one_that_is_not_finite_is_refused(facts):
    whole = sent(RAN, facts)
    for path, value in list(leaves(whole)):
        wrong = [7] if isinstance(value, str | bytes | bool) else ["seven", [7]]
        if isinstance(value, float | int) and "measured" not in path:  # it is read as from a file
            wrong += ["7", b"7"]
        if isinstance(value, float):
            wrong += [math.nan, math.inf, -math.inf]
        for other in [*wrong, *([] if value is None else [None])]:
            broken = sent(RAN, facts)
            with_leaf(broken, path, other)
            with pytest.raises(ReceiptError) as refused:
                read(broken, facts)
            assert ".".join(map(str, path[1:])) in str(refused.value), "it names the place"
            assert repr(other) in str(refused.value), "and the value"
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{}, {"ran": None, "facts": None}, {"ran": [1], "facts": "x"}])
def test_what_is_no_receipt_at_all_is_refused(wrong):
    with pytest.raises(ReceiptError, match=r"^Ran: "):
        read(wrong, Nothing())


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (b"", "0 bytes are no msgpack"),
        (b"\xc1", "1 bytes are no msgpack"),
        (packed({"ran": {}}) + b"\x00", "bytes are no msgpack"),
        (b"\x07", r"its parts are no dict, but 7"),
    ],
)
def test_what_is_no_dict_is_refused(wrong, problem):
    with pytest.raises(ReceiptError, match=problem):
        receipts.read(wrong, TypeAdapter(Nothing))


def test_another_kind_is_refused():
    for facts in EXAMPLES[1:]:
        for other in EXAMPLES:
            if type(other) is not type(facts):
                with pytest.raises(ReceiptError, match=rf"^{type(facts).__name__}: "):
                    read(sent(RAN, other), facts)
