"""CUDA graphs of forward passes, for rollouts: all kernels of a pass are launched at once.

A pass of few samples is computed sooner than Python launches its kernels, so the device waits. A
graph is captured for each shape, adapter and expert, and computes with the same kernels what was
captured: numbers are those of the pass itself. It reads weights where they lay then, so a push,
which writes into them, is seen; where they lie elsewhere since, it is captured again.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.models.experts import transformers_in
from digen_core.models.out_of_memory import is_out_of_memory
from digen_core.models.policy import Policy

MOST_GRAPHS: Final = 32
"""Graphs of a policy that are kept: each has memory of its own for what it is given and returns."""


class Capture(Protocol):
    """A way to capture what functions compute."""

    def __call__(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        """Return the function's result, and what computes it again, into the same tensors."""
        ...


class DeviceCapture:
    """The graphs of a device, which share one pool of memory: only one of them ever runs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None  # torch's name of it

    def __call__(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
        """Capture a function whose kernels were all loaded before, as by running it once.

        Raises:
            ConfigError: the device has no graphs.
            RuntimeError: it does what cannot be captured, such as waiting for the device.
        """
        require_graphs(self._device)
        self._stream = self._stream or torch.cuda.Stream(self._device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            # threads that receive a push may ask for memory meanwhile
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:  # torch.cuda.graph would not leave the stream, if this fails
                graph.capture_end()
        self._pool = graph.pool()
        return result, graph.replay


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured pass: what it is given, what it reads beside that, and its result."""

    inputs: list[Tensor]
    read: list[Tensor]  # weights and tables; they are kept as long as the graph is
    places: list[int]  # where they lay
    result: Any
    launch: Callable[[], object]

    @property
    def is_current(self) -> bool:
        """Whether all that it reads lies where it lay."""
        places = zip(self.read, self.places, strict=True)
        return all(own.data_ptr() == place for own, place in places)

    def compute(self, inputs: Sequence[Tensor]) -> Any:
        """Return the result for other numbers."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.launch()
        return pytree.tree_map_only(Tensor, Tensor.clone, self.result)


class Graphs:
    """The graphs of a policy, by what a pass depends on.

    They go all at once, where there are too many or one is of weights that lie elsewhere since:
    kernels of one have scratch memory that torch gives up when another one of its stream goes
    (pytorch#193402).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._capture: Capture = DeviceCapture(device)
        self._kept: dict[Hashable, _Graph] = {}

    def find(self, key: Hashable) -> _Graph | None:
        """Return the graph of a pass; None: it is to be captured."""
        found = self._kept.get(key)
        if found is not None and not found.is_current:
            self.clear()
            return None
        return found

    def capture(self, key: Hashable, inputs: list[Tensor], run: Callable[[], Any]) -> None:
        """Keep the graph of a pass that ran before.

        Args:
            key: what it depends on.
            inputs: that it is given, which belong to the graph from now on.
            run: the pass.

        Raises:
            ConfigError: it cannot be captured.
            torch.OutOfMemoryError: there is no memory for it.
        """
        if len(self._kept) >= MOST_GRAPHS:
            self.clear()
        reads = _Reads(inputs)
        # a compiled block that is looked into would not be compiled any more
        with torch.compiler.set_stance("force_eager"), reads:
            run()
        read = [*reads.found]
        try:
            result, launch = self._capture(run)
        except RuntimeError as error:
            self.clear()
            raise _told(error) from error
        places = [own.data_ptr() for own in read]
        self._kept[key] = _Graph(inputs, read, places, result, launch)

    def clear(self) -> None:
        """Forget all graphs, and give their memory back."""
        if self._kept and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # none is running
        self._kept.clear()
        self._capture = DeviceCapture(self._device)


def _told(error: RuntimeError) -> Exception:
    """Return what a capture ended with first: its end may fail, too, as it was not whole."""
    errors = [error]
    while isinstance(before := errors[-1].__context__, RuntimeError):
        errors.append(before)
    for own in errors:
        if is_out_of_memory(own):
            return torch.OutOfMemoryError(str(own))
    return ConfigError(
        "rollout.cuda_graphs is true, but a pass of this model cannot be captured: "
        f"{str(errors[-1]).partition(chr(10))[0]}; set it to false"
    )


class GraphedTransformer:
    """The forward passes of a transformer, captured and launched while ``is_on``.

    It takes the place of the transformer's ``forward``.
    """

    def __init__(
        self, transformer: nn.Module, mode: Callable[[], Hashable], graphs: Graphs
    ) -> None:
        """Take the place of a transformer's ``forward``.

        Args:
            transformer: with its adapters attached.
            mode: what a pass depends on beside its arguments, its weights and which adapter is
                active.
            graphs: of its policy.
        """
        self.is_on = False
        self._forward, self._mode, self._graphs = transformer.forward, mode, graphs
        adapted = (own for own in transformer.modules() if isinstance(own, LoraLayer))
        self._adapted = next(adapted, None)  # all have the same adapter active
        transformer.forward = self

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Return what the transformer's ``forward`` returns."""
        if not self.is_on:
            return self._forward(*arguments, **settings)
        leaves, form = pytree.tree_flatten((arguments, settings))
        key = (id(self), form, *map(_described, leaves), self._active, self._mode())
        try:
            if graph := self._graphs.find(key):
                return graph.compute(_tensors(leaves))
            result = self._forward(*arguments, **settings)  # compiles, and makes tables to keep
            own = pytree.tree_map_only(Tensor, Tensor.clone, (arguments, settings))
            self._graphs.capture(key, _tensors(own), lambda: self._forward(*own[0], **own[1]))
        except torch.OutOfMemoryError:
            self._graphs.clear()  # fewer samples are next, and have more room
            raise
        return result

    @property
    def _active(self) -> Hashable:
        layer = self._adapted
        return layer and (tuple(layer.active_adapters), layer.disable_adapters)


class _Reads(TorchDispatchMode):
    """The tensors that the body reads and does not make: weights, and tables that it keeps."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._made = WeakIdKeyDictionary(dict.fromkeys(given, True))

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), settings: Any = None
    ) -> Any:
        """Compute, and look at what was read and made."""
        settings = settings or {}
        for own in _tensors((arguments, settings)):
            if own not in self._made:
                self.found[own] = True
        result = function(*arguments, **settings)
        for own in _tensors(result):
            if own not in self.found:  # an operation in place returns what it was given
                self._made[own] = True
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _described(leaf: Any) -> Hashable:
    """Return what a graph of a pass with this argument cannot do without, and not its numbers."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    described: Hashable = leaf
    return described


def graphed_transformers(
    policy: Policy, config: RunConfig, mode: Callable[[], Hashable]
) -> tuple[GraphedTransformer, ...]:
    """Let the transformers of a policy that generate have graphs.

    Args:
        policy: with what is trained attached.
        config: of the run; without ``rollout.cuda_graphs`` there are none.
        mode: what a pass depends on beside its arguments, its weights and which adapter is active.
    """
    if not config.rollout.cuda_graphs or policy.device.type == "meta":
        return ()
    graphs = Graphs(policy.device)
    generating = transformers_in(policy.transformer)
    return tuple(GraphedTransformer(own, mode, graphs) for own in generating)


@contextmanager
def launching_graphs(transformers: Sequence[GraphedTransformer]) -> Iterator[None]:
    """Run the body, which computes no gradients, with passes that are captured."""
    for own in transformers:
        own.is_on = True
    try:
        yield
    finally:
        for own in transformers:
            own.is_on = False


def require_graphs(device: torch.device) -> None:
    """Check that a device has graphs.

    Raises:
        ConfigError: it has none.
    """
    if device.type == "cuda":
        return
    raise ConfigError(
        "rollout.cuda_graphs is true, which takes a GPU, but samples would be generated on a "
        f"{device.type} device; use false"
    )
