"""The model that a worker holds: versions are checked, and nothing half-loaded is used."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError, UserError
from digen_core.gang.members import ALONE
from digen_core.models.loading import load_trainable
from digen_core.models.trainable import initial_weights, trainable_parameters
from digen_core.training.contents import contents_of
from digen_core.training.train_state import PolicyVersion
from digen_core.transport.arrays import to_arrays
from support.pull_source import Source
from support.tiny_policies import TINY
from tasks.receipts import Nothing, collecting, packed, read
from tasks.setup import load_engine
from tasks.versions import first_state
from tasks.worker import engine as engine_module
from tasks.worker import pulling
from tasks.worker.engine import VersionError, build_engine, working
from tasks.worker.fetching import load_version

BOTH = frozenset({"rollout", "trainer"})


@pytest.fixture(scope="module")
def config(tiny_flux) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": tiny_flux, "device": "cpu", **TINY},
            "train": {"lora": {"rank": 4, "alpha": 8}},
            "rewards": {"shapes": 1.0},
        }
    )


@pytest.fixture(autouse=True)
def no_engines(monkeypatch):
    """No engine of another test, and this process's threads as they were."""
    monkeypatch.setattr(engine_module, "_engines", {})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine(config):
    return build_engine("run-1", config, "trainer-0", frozenset({"trainer"}))


@pytest.fixture
def stale_engine(config):
    """The engine of a layout in which versions overlap by up to two updates."""
    schedule = {"layout": "tcss", "max_stale_share": 0.25, "max_staleness": 2}
    config = RunConfig.model_validate({**config.model_dump(), "schedule": schedule})
    return build_engine("run-1", config, "rollout-1", frozenset({"trainer"}))


def weights_of(engine, version):
    shift = np.float32(version / 8)
    return {name: value + shift for name, value in version_zero().items()}


def weights_in(engine):
    parameters = to_arrays(trainable_parameters(engine.policy))
    return {name: value.copy() for name, value in parameters.items()}


def version_zero():
    engine = engine_module.engine_of("run-1")
    return initial_weights(engine.policy, engine.config.train.lora, seed=engine.config.seed)


def load(engine, version, weights, needed=()):
    pushed = PolicyVersion(version, contents_of(weights, ALONE))
    engine.load(pushed, weights, needed=needed)


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name])


# --- versions ---------------------------------------------------------------------------------


def test_a_run_that_the_worker_does_not_hold_is_refused(engine):
    message = "this worker holds no model of run run-2; was it restarted?"
    with pytest.raises(VersionError, match=message), working("run-2"):
        pass


def test_another_version_is_refused(engine):
    load(engine, 3, version_zero())
    message = r"trainer-0 holds versions \[3\], but version 4 is needed"
    with pytest.raises(VersionError, match=message), working("run-1", version=4):
        pass
    with working("run-1", version=3) as held:
        assert held is engine


def test_before_the_first_push_there_is_no_version(engine):
    message = r"trainer-0 holds versions \[\], but version 0 is needed"
    with pytest.raises(VersionError, match=message), working("run-1", version=0):
        pass
    with working("run-1"):  # making version 0 needs none
        pass


def test_a_loaded_version_is_what_is_computed_with(engine):
    weights = weights_of(engine, 1)
    load(engine, 1, weights)
    with working("run-1", version=1):
        assert engine.version == 1
        assert_equal(weights_in(engine), weights)


def test_damaged_weights_are_not_held(engine, monkeypatch):
    weights = version_zero()
    load(engine, 0, weights)
    source = Source(weights_of(engine, 1), 1)
    monkeypatch.setattr(pulling, "_ask", source.ask)
    for value in source.shelves["member-0"].rows(source.pushed.hash).values():
        value[0] += 1
    failure = load_version("run-1", source.pushed, source.addresses)
    name = next(iter(weights))
    assert failure == (f"it arrived damaged: {len(weights)} parameters differ, e.g. {name}")
    assert engine.versions.held == [0]
    assert engine.shelf.rows(source.pushed.hash) is None
    with working("run-1", version=0):
        assert_equal(weights_in(engine), weights)


def test_weights_of_another_model_are_not_held(engine):
    weights = version_zero()
    load(engine, 0, weights)
    with pytest.raises(ValueError, match="1 names differ"):
        load(engine, 1, {**weights, "another": np.zeros(1)})
    assert 1 not in engine.versions.held


def test_what_is_not_needed_is_dropped(engine):
    for version in range(3):
        load(engine, version, version_zero())
        assert engine.versions.held == [version]


def test_versions_that_are_needed_are_held_side_by_side(stale_engine):
    weights = {version: weights_of(stale_engine, version) for version in range(5)}
    held = []
    for version in range(5):
        load(stale_engine, version, weights[version], range(version - 2, version))
        held.append(stale_engine.versions.held)
    assert held == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    for version in (2, 4, 3, 4):
        with working("run-1", version=version) as engine:
            assert engine.version == version
            assert_equal(weights_in(engine), weights[version])
    message = r"rollout-1 holds versions \[2, 3, 4\], but version 1 is needed"
    with pytest.raises(VersionError, match=message), working("run-1", version=1):
        pass


def test_a_version_that_is_pushed_again_drops_no_other(stale_engine):
    weights = version_zero()
    for version in (0, 1, 2, 2):
        load(stale_engine, version, weights, {0, 1, 2})
    assert stale_engine.versions.held == [0, 1, 2]


def test_the_receipt_says_where_and_when():
    engine_module._engines["run-1"] = engine_module.Engine(RunConfig(), "rollout-1", None, {}, None)
    with collecting() as receipt, working("run-1"):
        pass
    ran = read(packed(receipt), TypeAdapter(Nothing)).ran
    assert ran.device == "rollout-1"
    assert ran.started <= ran.ended
    assert (ran.num_bytes, ran.compile_seconds) == (0, 0.0)
    assert ran.usage is None or ran.usage.memory_bytes > 0


# --- other weights for a while ----------------------------------------------------------------


def test_temporary_weights_are_taken_back(engine):
    held, average = version_zero(), weights_of(engine, 1)
    load(engine, 0, held)
    with working("run-1", version=0):
        with engine.temporary_weights(average):
            assert_equal(weights_in(engine), average)
        assert engine.version == 0
        assert_equal(weights_in(engine), held)


# --- building ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "has_rest"), [({"trainer"}, False), ({"rollout"}, True), (BOTH, True)]
)
def test_a_role_gets_the_parts_it_needs(config, roles, has_rest):
    engine = build_engine("run-1", config, "worker-0", frozenset(roles))
    pipeline = engine.policy.pipeline
    assert (pipeline.text_encoder is not None) == has_rest
    vae_is_loaded = not next(pipeline.vae.parameters()).is_meta
    assert vae_is_loaded == has_rest
    assert list(engine.rewards) == (["shapes"] if has_rest else [])
    assert (engine.device_name, engine.version) == ("worker-0", None)


@pytest.mark.parametrize(("coefficient", "kept"), [(0.0, False), (0.1, True)])
def test_full_training_keeps_the_base_model_for_kl_only(config, coefficient, kept):
    config = config.model_copy(
        update={
            "train": config.train.model_copy(update={"lora": None}),
            "algorithm": config.algorithm.model_copy(update={"kl_coefficient": coefficient}),
        }
    )
    engine = build_engine("run-1", config, "trainer-0", frozenset({"trainer"}))
    assert (engine.policy.reference_transformer is not None) == kept


def test_a_worker_holds_one_run_at_a_time(config, engine):
    second = build_engine("run-2", config, "trainer-0", frozenset({"trainer"}))
    with working("run-2") as held:
        assert held is second
    with pytest.raises(VersionError, match="no model of run run-1"), working("run-1"):
        pass


def test_the_old_model_is_gone_before_the_new_one_loads(config, monkeypatch):
    """Of a large one, a device has no room for two."""
    build_engine("run-1", config, "trainer-0", frozenset({"trainer"}))
    old = weakref.ref(engine_module._engines["run-1"].policy.transformer)
    alive = []

    def loading(config, parts, gang):
        alive.append(old() is not None)
        return load_trainable(config, parts, gang)

    monkeypatch.setattr(engine_module, "load_trainable", loading)
    build_engine("run-2", config, "trainer-0", frozenset({"trainer"}))
    assert alive == [False]


def test_version_zero_is_that_of_the_seed(config, engine):
    expected = initial_weights(engine.policy, config.train.lora, seed=config.seed)
    assert_equal(first_state("run-1").weights, expected)


def test_the_engine_uses_the_threads_of_the_config(config):
    cluster = config.cluster.model_copy(update={"threads_per_worker": 2})
    threads = config.model_copy(update={"cluster": cluster})
    build_engine("run-1", threads, "trainer-0", frozenset({"trainer"}))
    assert torch.get_num_threads() == 2


def test_a_device_that_a_worker_has_not_is_one_line(config, monkeypatch):
    """Each worker of a run sees one GPU, whichever number it has on its host."""
    model = config.model.model_copy(update={"device": "cuda:1"})
    config = config.model_copy(update={"model": model})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="'cuda:1', but torch sees 1 such devices here; use auto"):
        load_engine("run-1", config, "trainer-0", ["trainer"])


def test_a_model_that_does_not_fit_is_one_line(config, monkeypatch):
    """In a gang a member may have a smaller GPU than the leader, whose room was looked at."""

    def load(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine_module, "load_trainable", load)
    with pytest.raises(UserError, match=r"trainer-0 has not enough memory to hold the model .*use"):
        load_engine("run-1", config, "trainer-0", ["trainer"])


def test_nothing_of_the_last_run_is_in_memory_while_a_model_is_loaded(config, monkeypatch):
    """Its versions, which others might pull, may be as large as the model."""
    rows = {"a": np.zeros(8)}
    array = weakref.ref(rows["a"])
    build_engine("run-1", config, "trainer-0", frozenset({"trainer"})).shelf.put(0, "hash", rows)
    del rows
    assert array() is not None

    def load(*_):
        assert array() is None
        raise UserError("there is no such model")

    monkeypatch.setattr(engine_module, "load_trainable", load)
    with pytest.raises(UserError, match="no such model"):
        build_engine("run-2", config, "trainer-0", frozenset({"trainer"}))


def test_a_checkpoint_may_take_its_state_while_another_is_kept(engine, monkeypatch):
    """It does so on the worker's event loop, and the state of a step is kept in a task's thread."""
    state = first_state("run-1")
    for version in range(3):
        engine.keep_unsaved(replace(state, version=version), trained_from=version)

    def taken_meanwhile(self, version):
        engine.unsaved.pop(version)
        return True

    monkeypatch.setattr(RunConfig, "is_kept", taken_meanwhile)
    engine.keep_unsaved(replace(state, version=3), trained_from=2)
    assert 3 in engine.unsaved
