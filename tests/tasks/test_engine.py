"""The model that a worker holds: versions are checked, and nothing half-loaded is used."""

import numpy as np
import pytest
import torch

from digen_core.config import RunConfig
from digen_core.models.trainable import initial_weights
from digen_core.training.optimizer import PolicyVersion
from digen_core.transport.arrays import content_hash
from tasks import engine as engine_module
from tasks.engine import VersionError, build_engine, version_zero, working
from tasks.receipts import collecting

BOTH = frozenset({"rollout", "trainer"})


@pytest.fixture(scope="module")
def config(tiny_flux) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": tiny_flux, "device": "cpu"},
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


def other_weights(engine, shift=0.25):
    return {name: value + np.float32(shift) for name, value in version_zero(engine).items()}


def load(engine, version, weights):
    return engine.load(PolicyVersion(version, weights, content_hash(weights)))


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
    load(engine, 3, version_zero(engine))
    message = "trainer-0 holds version 3, but version 4 is needed"
    with pytest.raises(VersionError, match=message), working("run-1", version=4):
        pass
    with working("run-1", version=3) as held:
        assert held is engine


def test_before_the_first_push_there_is_no_version(engine):
    message = "trainer-0 holds version None, but version 0 is needed"
    with pytest.raises(VersionError, match=message), working("run-1", version=0):
        pass
    with working("run-1"):  # making version 0 needs none
        pass


def test_a_loaded_version_is_acknowledged_with_its_content(engine):
    weights = other_weights(engine)
    assert load(engine, 1, weights) == content_hash(weights)
    assert_equal(engine.held_weights(), weights)
    assert engine.version == 1


def test_damaged_weights_leave_no_version(engine):
    weights = version_zero(engine)
    load(engine, 0, weights)
    message = r"trainer-0 received version 1 with hash [0-9a-f]{16}, but 0{16} was pushed"
    with pytest.raises(VersionError, match=message):
        engine.load(PolicyVersion(1, weights, "0" * 16))
    assert engine.version is None


def test_weights_of_another_model_leave_no_version(engine):
    weights = version_zero(engine)
    load(engine, 0, weights)
    with pytest.raises(ValueError, match="1 names differ"):
        load(engine, 1, {**weights, "another": np.zeros(1)})
    assert engine.version is None


def test_the_receipt_says_where_and_when():
    engine_module._engines["run-1"] = engine_module.Engine(RunConfig(), "rollout-1", None, {})
    with collecting() as receipt, working("run-1"):
        pass
    assert receipt["device"] == "rollout-1"
    assert receipt["started"] <= receipt["ended"]


# --- other weights for a while ----------------------------------------------------------------


def test_temporary_weights_are_taken_back(engine):
    held, average = version_zero(engine), other_weights(engine)
    load(engine, 0, held)
    with engine.temporary_weights(average):
        assert_equal(engine.held_weights(), average)
    assert_equal(engine.held_weights(), held)
    with pytest.raises(KeyError), engine.temporary_weights(average):
        raise KeyError
    assert_equal(engine.held_weights(), held)
    assert engine.version == 0


def test_held_weights_are_a_copy(engine):
    load(engine, 0, version_zero(engine))
    for value in engine.held_weights().values():
        value += 1
    assert_equal(engine.held_weights(), version_zero(engine))


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
    assert list(engine.rewards) == ["shapes"]
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


def test_version_zero_is_that_of_the_seed(config, engine):
    expected = initial_weights(engine.policy, config.train.lora, seed=config.seed)
    assert_equal(version_zero(engine), expected)


def test_the_engine_uses_the_threads_of_the_config(config):
    cluster = config.cluster.model_copy(update={"threads_per_worker": 2})
    threads = config.model_copy(update={"cluster": cluster})
    build_engine("run-1", threads, "trainer-0", frozenset({"trainer"}))
    assert torch.get_num_threads() == 2
