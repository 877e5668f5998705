"""A push: in the dtype of the parameters, hashed as it is sent, and the same weights as before."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from prefect.states import Completed
from safetensors.numpy import load_file

from digen_core.checkpoints.tensors import read_checkpoint, write_checkpoint
from digen_core.config.run import RunConfig
from digen_core.models.tiny.flux import build_tiny_flux
from digen_core.models.trainable import trainable_parameters
from digen_core.training.optimizer import optimizer_step
from digen_core.training.train_state import OLD, initial_state
from digen_core.transport import fingerprint as fingerprint_module
from digen_core.transport.fingerprint import content_hash, fingerprint
from support.checkpoints import assert_same, position_of
from support.in_process import call
from support.pull_source import Source
from support.tiny_policies import TINY
from tasks.export import export_adapter
from tasks.versions import publish, push_weights, start_state
from tasks.worker import engine as engine_module
from tasks.worker import pulling
from tasks.worker.engine import build_engine
from tasks.worker.shelf import AVERAGE
from tasks.worker.transfers import sent_bytes

TRAINER = frozenset({"trainer"})
WHOLE = {"lora": None}
ADAPTERS = {"lora": {"rank": 4}}
SOME = {"lora": {"rank": 4, "targets": ("to_q", "time_embedder.linear_1")}}


@pytest.fixture(autouse=True)
def no_engines(monkeypatch):
    """No engine of another test, and this process's threads as they were."""
    monkeypatch.setattr(engine_module, "_engines", {})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def wider_flux(tmp_path_factory):
    """Folder of a FLUX whose names and shapes are little beside its 2 million parameters."""
    folder = tmp_path_factory.mktemp("wider_flux")
    build_tiny_flux(width=256, num_layers=1, num_single_layers=1).save_pretrained(folder)
    return str(folder)


def engine_of(path, dtype, train, **model):
    settings = {"path": path, "device": "cpu", "dtype": dtype, **TINY, **model}
    config = RunConfig.model_validate({"model": settings, "train": train})
    return build_engine("run", config, "trainer-0", TRAINER)


def moved(state, **changes):
    """A state of version 1 whose masters no half precision holds."""
    rng = np.random.default_rng(1)
    weights = {
        name: value + (0.01 * rng.standard_normal(value.shape)).astype(value.dtype)
        for name, value in state.weights.items()
    }
    return initial_state(weights, **changes)


def as_before(engine, masters):
    """What copying the masters into each parameter gives."""
    found = {name: p.detach().clone() for name, p in trainable_parameters(engine.policy).items()}
    for name, parameter in found.items():
        parameter.copy_(torch.tensor(masters[name]))
    return found


def assert_computes_with(engine, expected):
    found = trainable_parameters(engine.policy)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("train", [WHOLE, ADAPTERS], ids=["all weights", "adapters"])
def test_what_is_trained_travels_in_two_bytes_each(wider_flux, dtype, train):
    engine = engine_of(wider_flux, dtype, train)
    state, _ = call(start_state)
    pushed, published = call(publish, state=state)
    count = sum(value.size for value in state.weights.values())
    assert sent_bytes(Completed(data=pushed)) < 0.05 * 2 * count or train != WHOLE
    assert sum(value.nbytes for value in engine.shelf.rows(pushed.hash).values()) == 2 * count
    _, loaded = call(push_weights, policy_version=pushed)
    assert (loaded.version, loaded.hash, loaded.failure) == (0, published.hash, "")
    assert loaded.hash != state.weights_hash
    engine.versions.activate(0)
    held = engine.versions._kept[0] if train == WHOLE else trainable_parameters(engine.policy)
    assert sum(value.nbytes for value in held.values()) == 2 * count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("train", [WHOLE, ADAPTERS], ids=["all weights", "adapters"])
def test_receivers_compute_with_what_the_masters_gave(tiny_flux, dtype, train):
    engine = engine_of(tiny_flux, dtype, train)
    state = moved(call(start_state)[0], keeps_old=True)
    expected = as_before(engine, state.weights)
    pushed, _ = call(publish, state=state)
    call(push_weights, policy_version=pushed)
    engine.versions.activate(0)
    assert_computes_with(engine, expected)
    with engine.old_policy():
        assert_computes_with(engine, expected)
    average, _ = call(publish, state=moved(state), average=True)
    with engine.temporary_weights(engine.shelf.rows(average.hash)):
        assert_computes_with(engine, as_before(engine, moved(state).weights))
    assert_computes_with(engine, expected)


def test_versions_that_are_needed_are_kept_in_whatever_order_they_come(tiny_flux):
    """As of an iteration of several updates, or where a push had to be tried again."""
    engine, (state, _) = engine_of(tiny_flux, "float32", {"lora": {"rank": 4}}), call(start_state)
    made = [state]
    for _ in range(3):
        made.append(replace(moved(made[-1]), version=made[-1].version + 1))

    def push(version, needed):
        pushed, _ = call(publish, state=made[version])
        call(push_weights, policy_version=pushed, needed=frozenset(needed))
        return sorted(engine.versions.held)

    assert push(0, {0}) == [0]
    assert push(2, {0, 1, 2}) == [0, 2]
    assert push(1, {0, 1, 2}) == [0, 1, 2]
    assert push(3, {2, 3}) == [2, 3]
    assert push(0, {0}) == [0]  # a run that goes back to where it began


@pytest.mark.parametrize("train", [WHOLE, SOME], ids=["all weights", "adapters"])
def test_each_parameter_has_its_own_dtype(tiny_families, train):
    """Some modules of Wan stay float32."""
    engine = engine_of(tiny_families["wan"], "bfloat16", train, family="wan")
    state = moved(call(start_state)[0])
    pushed, _ = call(publish, state=state)
    dtypes = {name: p.dtype for name, p in trainable_parameters(engine.policy).items()}
    assert set(dtypes.values()) == {torch.float32, torch.bfloat16}
    for name, dtype in dtypes.items():
        assert engine.shelf.rows(pushed.hash)[name].dtype == (
            np.uint16 if dtype.itemsize == 2 else np.float32
        )
    call(push_weights, policy_version=pushed)
    engine.versions.activate(0)
    assert_computes_with(engine, as_before(engine, state.weights))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_adapters_in_the_dtype_of_their_masters_are_named_as_those(tiny_flux, dtype):
    engine_of(tiny_flux, dtype, ADAPTERS)
    state = moved(call(start_state)[0])
    pushed, published = call(publish, state=state)
    assert {content.dtype for content in pushed.contents.values()} == {f"torch.{dtype}"}
    assert (published.hash == state.weights_hash) == (dtype != "bfloat16")


@pytest.mark.parametrize("train", [WHOLE, ADAPTERS], ids=["all weights", "adapters"])
def test_updates_too_small_to_show_add_up_in_the_masters(tiny_flux, train):
    """Of 0.003 each from 1, above which bfloat16 has steps of 1 / 128: two show as one."""
    engine = engine_of(tiny_flux, "bfloat16", {**train, "weight_decay": 0.0})
    state = call(start_state)[0]
    state = initial_state({name: np.ones_like(value) for name, value in state.weights.items()})
    gradient = {name: torch.full(value.shape, -1.0) for name, value in state.weights.items()}
    for expected in (1, 1, 1 + 1 / 128):
        pushed, _ = call(publish, state=state)
        call(push_weights, policy_version=pushed)
        engine.versions.activate(state.version)
        for value in trainable_parameters(engine.policy).values():
            assert value.dtype == torch.bfloat16
            assert (value == expected).all()
        state = optimizer_step(state, gradient, engine.config.train, learning_rate=0.003)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_adapters_are_kept_and_exported_as_they_were_trained(tiny_flux, dtype, tmp_path):
    """And of a checkpoint the same is pushed."""
    engine_of(tiny_flux, dtype, ADAPTERS)
    state = moved(call(start_state)[0])
    checkpoint = write_checkpoint(tmp_path / "checkpoints", state, position_of(1))
    found = read_checkpoint(checkpoint)
    assert_same(found, state)
    assert {value.dtype for value in found.weights.values()} == {np.dtype(np.float32)}
    assert call(publish, state=found)[0].contents == call(publish, state=state)[0].contents
    call(export_adapter, state=found, folder=tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "pytorch_lora_weights.safetensors")
    for name, value in state.weights.items():
        own = saved[f"transformer.{name.replace('.default.', '.')}"]
        np.testing.assert_array_equal(own, value, strict=True)


@pytest.fixture
def fingerprinted(monkeypatch):
    """How many bytes were fingerprinted, in this process."""
    found = []

    def counted(array, first_row=0):
        found.append(array.nbytes)
        return fingerprint(array, first_row)

    for module in (fingerprint_module, pulling):
        monkeypatch.setattr(module, "fingerprint", counted)
    return found


def taken_away(engine, pushed, monkeypatch):
    """Let another device hold what this one published, in its place; return it and its rows."""
    source = Source({n: v.copy() for n, v in engine.shelf.rows(pushed.hash).items()}, 1)
    engine.shelf.drop(pushed.version)
    monkeypatch.setattr(pulling, "_ask", source.ask)
    return tuple(source.addresses), source.shelves["member-0"].rows(pushed.hash)


@pytest.mark.parametrize("part", ["", OLD], ids=["weights", "old"])
def test_a_bit_that_flips_on_the_way_is_refused(tiny_flux, part, monkeypatch):
    engine = engine_of(tiny_flux, "bfloat16", WHOLE)
    pushed, _ = call(publish, state=moved(call(start_state)[0], keeps_old=True))
    addresses, rows = taken_away(engine, pushed, monkeypatch)
    name = next(name for name in rows if name.startswith(part))
    rows[name][0] ^= np.uint16(1)
    _, found = call(push_weights, policy_version=pushed, source=addresses)
    assert found.failure == f"it arrived damaged: 1 parameters differ, e.g. {name}"
    assert engine.versions.held == []
    rows[name][0] ^= np.uint16(1)
    _, found = call(push_weights, policy_version=pushed, source=addresses)
    assert (found.failure, found.hash, engine.versions.held) == ("", pushed.hash, [0])


def trained(config, num_updates):
    """States of a run whose gradients are noise, from version 0 on."""
    generator, state = torch.Generator().manual_seed(0), call(start_state)[0]
    yield state
    for _ in range(num_updates):
        gradient = {
            name: torch.randn(value.shape, generator=generator)
            for name, value in state.weights.items()
        }
        state = optimizer_step(state, gradient, config.train, learning_rate=1e-5)
        yield state


class Device:
    """An engine by itself, which others pull from."""

    def __init__(self, config, monkeypatch):
        self._patch = monkeypatch
        self.engine = build_engine("run", config, "device", TRAINER)
        self.source = Source({}, 1)
        self.source.shelves["member-0"] = self.engine.shelf

    def base_of(self, pushed):
        """Return the version that the iteration before ended with."""
        updates = self.engine.config.train.updates_per_iteration
        return (pushed.version - 1) // updates * updates

    def publish(self, state):
        """Publish and hold a version, as its maker does."""
        self._patch.setattr(engine_module, "_engines", {"run": self.engine})
        pushed, _ = call(publish, state=state)
        updates = self.engine.config.train.updates_per_iteration
        needed = {pushed.version - 1} if pushed.version % updates else ()
        call(push_weights, policy_version=pushed, needed=needed, base=self.base_of(pushed))
        return pushed

    def pull(self, pushed, other):
        """Pull a version from another device; return the failure and the bytes that came."""
        self._patch.setattr(engine_module, "_engines", {"run": self.engine})
        self._patch.setattr(pulling, "_ask", other.source.ask)
        before, source = other.source.num_sent, tuple(other.source.addresses)
        _, found = call(
            push_weights,
            policy_version=pushed,
            source=source,
            by_delta=True,
            base=self.base_of(pushed),
        )
        return found.failure, other.source.num_sent - before


def test_versions_come_as_deltas_of_the_same_bits(wider_flux, monkeypatch):
    """Over ten updates; one device is lost, and one in its place holds nothing yet to begin with.

    That one pulls from the trainer, and another one from it: all of a version, of which it has not
    the base that the other one holds.
    """
    config = engine_of(wider_flux, "bfloat16", WHOLE).config
    trainer, first, second = (Device(config, monkeypatch) for _ in range(3))
    states = trained(config, 10)
    for version in range(11):
        monkeypatch.setattr(engine_module, "_engines", {"run": trainer.engine})
        pushed = trainer.publish(next(states))
        rows = trainer.engine.shelf.rows(pushed.hash)
        dense = sum(value.nbytes for value in rows.values())
        if version == 4:
            first = Device(config, monkeypatch)
        for device, source in ((first, trainer), (second, first)):
            failure, sent = device.pull(pushed, source)
            assert failure == ""
            assert sent == dense if version in (0, 4) else 0 < sent < 0.35 * dense
            assert device.engine.versions.held == [version]
            held = device.engine.versions._kept[version]
            assert held.keys() == rows.keys()
            for name, value in held.items():
                np.testing.assert_array_equal(value, rows[name])
        assert trainer.engine.shelf.versions == [version, version - 1][: version + 1]


def test_with_two_updates_deltas_are_of_what_the_iteration_before_ended_with(
    wider_flux, monkeypatch
):
    """The trainer holds the version between them, too, which nobody else gets."""
    train = {**WHOLE, "updates_per_iteration": 2}
    config = engine_of(wider_flux, "bfloat16", train).config
    trainer, device = Device(config, monkeypatch), Device(config, monkeypatch)
    for version, state in enumerate(trained(config, 6)):
        monkeypatch.setattr(engine_module, "_engines", {"run": trainer.engine})
        pushed = trainer.publish(state)
        if version % 2 == 0:
            failure, sent = device.pull(pushed, trainer)
            rows = trainer.engine.shelf.rows(pushed.hash)
            dense = sum(value.nbytes for value in rows.values())
            assert failure == ""
            assert sent == dense if version == 0 else 0 < sent < 0.5 * dense
    assert trainer.engine.shelf.versions == [6, 4]


def test_a_bit_that_flips_in_a_delta_is_refused(tiny_flux, monkeypatch):
    config = engine_of(tiny_flux, "bfloat16", WHOLE).config
    trainer, device = Device(config, monkeypatch), Device(config, monkeypatch)
    states = trained(config, 1)
    monkeypatch.setattr(engine_module, "_engines", {"run": trainer.engine})
    assert device.pull(trainer.publish(next(states)), trainer)[0] == ""
    monkeypatch.setattr(engine_module, "_engines", {"run": trainer.engine})
    pushed = trainer.publish(next(states))

    def flipped(answer, place):
        index = max(range(len(answer.values)), key=lambda i: len(answer.values[i]))
        delta = bytearray(answer.values[index])
        delta[place * len(delta) // 10] ^= 1
        values = [*answer.values]
        values[index] = bytes(delta)
        return answer._replace(values=values)

    for place in range(10):
        trainer.source.change = partial(flipped, place=place)
        failure, _ = device.pull(pushed, trainer)
        assert failure.startswith(("it arrived damaged: 1 parameters differ", "member-0 sent "))
        assert device.engine.versions.held == [0]
    trainer.source.change = lambda answer: answer
    assert device.pull(pushed, trainer)[0] == ""
    assert device.engine.versions.held == [1]


def test_each_side_fingerprints_a_push_once(tiny_flux, fingerprinted, monkeypatch):
    engine = engine_of(tiny_flux, "bfloat16", WHOLE)
    state = moved(call(start_state)[0])
    fingerprinted.clear()
    pushed, _ = call(publish, state=state)
    num_bytes = sum(value.nbytes for value in engine.shelf.rows(pushed.hash).values())
    assert sum(fingerprinted) == num_bytes
    call(push_weights, policy_version=pushed)  # on the device that made it
    assert sum(fingerprinted) == num_bytes
    addresses, _ = taken_away(engine, pushed, monkeypatch)
    fingerprinted.clear()
    call(push_weights, policy_version=pushed, source=addresses)
    assert sum(fingerprinted) == num_bytes


@pytest.mark.parametrize("keeps_old", [False, True])
def test_an_average_that_is_the_version_is_not_fingerprinted_again(
    tiny_flux, fingerprinted, keeps_old
):
    engine = engine_of(tiny_flux, "bfloat16", WHOLE)
    state = moved(call(start_state)[0], keeps_old=keeps_old)
    expected, _ = call(publish, state=state, average=True)  # nothing was published before
    engine.shelf.drop(AVERAGE)
    pushed, _ = call(publish, state=state)
    fingerprinted.clear()
    average, named = call(publish, state=state, average=True)
    assert fingerprinted == []
    assert (average, named.hash) == (expected, expected.hash)
    assert (average.hash == pushed.hash) != keeps_old
    rows = engine.shelf.rows(average.hash)
    assert content_hash(rows) == average.hash


@pytest.mark.parametrize("change", ["average", "state", "shelf"])
def test_an_average_that_is_not_what_was_published_is_fingerprinted(
    tiny_flux, fingerprinted, change
):
    engine = engine_of(tiny_flux, "bfloat16", WHOLE)
    state = moved(call(start_state)[0])
    pushed, _ = call(publish, state=state)
    if change == "average":
        state = replace(state, ema={name: value + 1 for name, value in state.weights.items()})
    elif change == "state":  # of the same number, as after a run went back
        state = initial_state({name: value + 1 for name, value in state.weights.items()})
    else:
        engine.shelf.drop(pushed.version)
    fingerprinted.clear()
    average, _ = call(publish, state=state, average=True)
    rows = engine.shelf.rows(average.hash)
    assert sum(fingerprinted) == sum(value.nbytes for value in rows.values())
    assert (average.hash == pushed.hash) == (change == "shelf")
    assert content_hash(rows) == average.hash


def test_masters_beyond_half_precision_are_refused_before_they_are_sent(tiny_flux):
    engine_of(tiny_flux, "float16", WHOLE)
    state, _ = call(start_state)
    name = next(iter(state.weights))
    state.weights[name].flat[0] = 7e4
    message = f"{name} cannot be pushed: it has NaN or more than 65504 of torch.float16."
    with pytest.raises(FloatingPointError, match=f"^{message}$"):
        call(publish, state=state)
