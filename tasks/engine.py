"""The model that a worker process holds, by run: what every task body works with."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import time

import diffusers
import numpy as np
import torch
import transformers
from torch import Tensor

from digen_core.config import RunConfig
from digen_core.models import LOADERS
from digen_core.models.policy import ALL_PARTS, TRAINER_PARTS, Policy
from digen_core.models.trainable import (
    initial_weights,
    make_trainable,
    set_weights,
    trainable_parameters,
)
from digen_core.rewards import reward_functions
from digen_core.rewards.scoring import RewardFn
from digen_core.training.optimizer import PolicyVersion
from digen_core.transport.arrays import Weights, content_hash, to_array
from tasks import receipts


class VersionError(RuntimeError):
    """A worker holds another policy version than its instruction names, or no model at all."""


@dataclass
class Engine:
    """A policy and its version, on one device."""

    config: RunConfig
    device_name: str
    policy: Policy
    rewards: dict[str, RewardFn]
    version: int | None = None  # None until the first push

    def load(self, pushed: PolicyVersion) -> str:
        """Adopt a version and return the hash of the weights that arrived.

        Raises:
            VersionError: they arrived damaged.
        """
        self.version = None  # nothing half-loaded is ever used
        found = content_hash(pushed.weights)
        if found != pushed.weights_hash:
            raise VersionError(
                f"{self.device_name} received version {pushed.version} with hash {found}, "
                f"but {pushed.weights_hash} was pushed"
            )
        set_weights(self.policy, pushed.weights)
        self.version = pushed.version
        return found

    def held_weights(self) -> Weights:
        """Return the trained parameters as they are now."""
        named = trainable_parameters(self.policy).items()
        return {name: to_array(parameter).copy() for name, parameter in named}

    @contextmanager
    def temporary_weights(self, weights: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Run the body with other weights (the moving average), then restore the version."""
        held = self.held_weights()
        set_weights(self.policy, weights)
        try:
            yield
        finally:
            set_weights(self.policy, held)

    def sigmas(self, num_steps: int) -> Tensor:
        """Return the schedule, on the policy's device."""
        return self.policy.sigmas(num_steps).to(self.policy.device)


_engines: dict[str, Engine] = {}


def build_engine(run_id: str, config: RunConfig, device_name: str, roles: frozenset[str]) -> Engine:
    """Load the parts that the roles need, and keep the engine for the tasks to come."""
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
    torch.set_num_threads(config.cluster.threads_per_worker)
    parts = ALL_PARTS if "rollout" in roles else TRAINER_PARTS
    policy = LOADERS[config.model.family](config.model, parts)
    make_trainable(policy, config.train.lora, keep_reference=bool(config.algorithm.kl_coefficient))
    rewards = reward_functions(config.rewards)
    _engines.clear()  # one run at a time on a worker: the last one's memory is free again
    engine = _engines[run_id] = Engine(config, device_name, policy, rewards)
    return engine


def version_zero(engine: Engine) -> Weights:
    """Return the weights that the run starts from."""
    return initial_weights(engine.policy, engine.config.train.lora, seed=engine.config.seed)


@contextmanager
def working(run_id: str, *, version: int | None = None) -> Iterator[Engine]:
    """Give a task body its engine, check the version it needs, and put the span on the receipt.

    Raises:
        VersionError: this worker holds no model of the run, or another version than ``version``.
    """
    engine = _engines.get(run_id)
    if engine is None:
        raise VersionError(f"this worker holds no model of run {run_id}; was it restarted?")
    if version is not None and engine.version != version:
        raise VersionError(
            f"{engine.device_name} holds version {engine.version}, but version {version} is needed"
        )
    started = time()
    yield engine
    receipts.attach({"device": engine.device_name, "started": started, "ended": time()})
