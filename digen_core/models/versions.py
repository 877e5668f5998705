"""The versions of a policy's trained weights that a device holds side by side; one is active.

Rollouts may still use version v when v+1 has arrived. The base weights are resident once; what a
version adds to that is its adapters, on the device, or a copy of everything, on the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from digen_core.models.policy import Policy
from digen_core.models.trainable import (
    FIRST_ADAPTER,
    attach_adapter,
    check_weights,
    copy_weights,
    trainable_parameters,
    trained_parameters,
    use_adapter,
)
from digen_core.transport.arrays import Weights

Kept = TypeVar("Kept")


class PolicyVersions(ABC, Generic[Kept]):
    """Versions by number. Whoever computes with one calls ``activate`` before."""

    def __init__(self, policy: Policy) -> None:
        self._transformer = policy.transformer
        self._parameters = trainable_parameters(policy)  # they belong to no version
        self._whole = trained_parameters(policy)
        self._kept: dict[int, Kept] = {}
        self._active: int | None = None

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Of all parameters that are trained, by name: in them a version is pushed."""
        return {name: parameter.dtype for name, parameter in self._whole.items()}

    @property
    def names(self) -> Collection[str]:
        """Of the parameters that are trained here: of a stage its own."""
        return self._parameters.keys()

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """What `trainable_parameters` finds in the policy, without a look through its modules."""
        return self._parameters

    @property
    def sharded(self) -> Collection[str]:
        """Of those parameters of which each member of a gang holds its rows: all have the same."""
        own = self._parameters.items()
        return {name for name, parameter in own if isinstance(parameter, DTensor)}

    @property
    def active(self) -> int | None:
        """The version whose weights the policy has now; None if they are of no version."""
        return self._active

    @property
    def held(self) -> list[int]:
        """The versions that can be activated, ascending."""
        return sorted(self._kept)

    def hold(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Keep a version beside the others, or in place of what was held under its number.

        Args:
            version: its number.
            weights: by parameter name what this device holds of each, all of it or its rows, as
                masters or `rounded`; never changed from now on.

        Raises:
            ValueError: the names or shapes are not those of the policy; nothing has changed.
        """
        check_weights(weights, self._parameters)
        if version in self._kept:
            self.drop(version)
        self._kept[version] = self._keep(weights)

    def activate(self, version: int) -> None:
        """Give the policy the weights of a version that is held.

        Not between a forward and its backward: that would lose the gradients silently.

        Raises:
            KeyError: it is not held.
        """
        if version != self._active:
            kept = self._kept[version]
            self._active = None  # nothing half-loaded is ever used
            self._use(kept)
            self._active = version

    def drop(self, version: int) -> None:
        """Forget a version; if it was active, none is.

        Raises:
            KeyError: it is not held.
        """
        self._release(self._kept.pop(version))
        if version == self._active:
            self._active = None

    @contextmanager
    def temporary(self, weights: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Run the body with weights of no version, then activate the version that was active."""
        before, self._active = self._active, None
        self._set_aside()
        try:
            copy_weights(weights, self._parameters)
            yield
        finally:
            if before is not None:
                self.activate(before)

    @abstractmethod
    def _keep(self, weights: Mapping[str, np.ndarray]) -> Kept: ...

    @abstractmethod
    def _use(self, kept: Kept) -> None: ...

    @abstractmethod
    def _release(self, kept: Kept) -> None: ...

    @abstractmethod
    def _set_aside(self) -> None:
        """Let the model compute with the parameters that belong to no version."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A peft adapter and its parameters, by the names that weights have."""

    name: str
    parameters: dict[str, nn.Parameter]


class AdapterVersions(PolicyVersions[Adapter]):
    """Each version in a peft adapter of its own; the first adapter belongs to no version.

    The adapter of a dropped version is filled again: to attach one takes 25 ms for the model of the
    job ``shapes`` and 0.4 s for the 57 blocks of FLUX.1, ten times as long as to fill one.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._policy = policy
        self._first = self._in_use = Adapter(FIRST_ADAPTER, self._parameters)
        self._free: list[Adapter] = []

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """Those of the active version's adapter."""
        active = self.active
        return self._parameters if active is None else self._kept[active].parameters

    def _keep(self, weights: Mapping[str, np.ndarray]) -> Adapter:
        adapter = self._free.pop() if self._free else self._attach()
        copy_weights(weights, adapter.parameters)
        return adapter

    def _attach(self) -> Adapter:
        name = f"version_{len(self._kept)}"  # all that were attached before are in use
        self._active = None  # peft makes a new adapter the active one
        attach_adapter(self._policy, self._transformer.peft_config[FIRST_ADAPTER], name)
        self._in_use = Adapter(name, trainable_parameters(self._policy))
        return self._in_use

    def _use(self, kept: Adapter) -> None:
        for parameters, is_trained in ((self._in_use.parameters, False), (kept.parameters, True)):
            for parameter in parameters.values():
                parameter.requires_grad_(is_trained)
        use_adapter(self._policy, kept.name)
        self._in_use = kept

    def _release(self, kept: Adapter) -> None:
        self._free.append(kept)

    def _set_aside(self) -> None:
        self._use(self._first)


class WholeVersions(PolicyVersions[Weights]):
    """Each version as all weights that arrived, copied into the model to become active.

    Where weights are sharded, this device has its rows only.
    """

    def _keep(self, weights: Mapping[str, np.ndarray]) -> Weights:
        return dict(weights)

    def _use(self, kept: Weights) -> None:
        copy_weights(kept, self._parameters)

    def _release(self, kept: Weights) -> None:
        pass  # the last reference to the arrays is gone

    def _set_aside(self) -> None:
        pass  # the model's parameters are the only ones


def versions_of(policy: Policy) -> AdapterVersions | WholeVersions:
    """Return an empty store for what is trained in the policy: its adapters or all weights."""
    has_adapters = bool(getattr(policy.transformer, "peft_config", None))
    return AdapterVersions(policy) if has_adapters else WholeVersions(policy)
