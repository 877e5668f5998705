"""What each block of a recipe's transformer takes, counted without weights and without a GPU.

The real passes run as in `sizes.py` and `memory_count.py`; hooks say when one block ends and the
next begins, there and back.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.gang.members import ALONE
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.experts import Experts, transformers_in
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.planning.allocations import FakeModules
from digen_core.planning.memory_count import on_meta
from digen_core.planning.sizes import largest_size, velocity_of_one
from digen_core.planning.stages.chain import Block, Chain

BEFORE: Final = "before the blocks"
AFTER: Final = "after the blocks"
_SUMMED: Final = 4  # bytes of a number of a sum of gradients


def chain_of(config: RunConfig, folder: Path) -> Chain:
    """Count what the parts of a recipe's transformer take.

    Where samples and training have unequal guidance, it is of the one that takes more passes; of
    samples of several sizes, of the largest.

    Args:
        config: of the run.
        folder: with the model's settings, ``transformer/config.json`` and ``vae/config.json``.

    Raises:
        OSError: the settings are not there.
        UserError: the model has other sizes than the config asks for.
        ValueError: no module matches the config's LoRA targets.
    """
    own = on_meta(config, folder, ALONE).at_size(largest_size(config.model))
    policy = max(own, own.in_training(), key=attrgetter("num_passes"))
    with FlopCounterMode(display=False) as counter:
        flops = _Passes(policy, counter.get_total_flops)
        flops.there_and_back()
    weights, trained, summed = _held(flops, config)
    fake = FakeModules(policy.transformer)  # the policy is of no other use from here
    policy.device = torch.device("cpu")
    with fake.counting() as held:
        graph = _Passes(policy, lambda: held.now)
        graph.there()
    parts = [
        Block(
            name,
            forward_flops=flops.forward[name],
            backward_flops=flops.backward[name],
            weight_bytes=weights[name],
            trained_bytes=trained[name],
            sum_bytes=summed[name],
            graph_bytes=max(graph.forward[name], 0),  # what leaves the last block is let go of
            cut_bytes=graph.cuts[name],
        )
        for name in (BEFORE, *flops.blocks, AFTER)
    ]
    velocity_bytes = flops.velocity_bytes * policy.num_passes
    return Chain(parts[0], tuple(parts[1:-1]), parts[-1], velocity_bytes, policy.num_passes)


def named_blocks(policy: PipelinePolicy) -> dict[str, nn.Module]:
    """Return the blocks of a policy's transformer by name, in the order of the forward pass.

    Of two experts they are those of the one that computes where there are no numbers.
    """
    return {
        f"{kind}.{number}": block
        for kind in FAMILIES[policy.config.family].blocks
        for number, block in enumerate(getattr(_computing(policy), kind).children())
    }


def _computing(policy: PipelinePolicy) -> Any:
    transformer = policy.transformer
    return transformer.current if isinstance(transformer, Experts) else transformer


class _Passes:
    """A sample's passes, there and back, in which some reading is taken where a part begins.

    By how much it has grown, there and back, is put down to the part that ends.
    """

    def __init__(self, policy: PipelinePolicy, read: Callable[[], int]) -> None:
        self.blocks = named_blocks(policy)
        self.forward, self.backward = Counter[str](), Counter[str]()
        self.cuts = Counter[str]()
        self.outside: dict[str, str] = {}  # module beside the blocks -> the part it belongs to
        self.velocity_bytes = 0
        names = list(self.blocks)
        self._first, self._last = names[0], names[-1]
        self._streams = FAMILIES[policy.config.family].streams
        self.transformers = transformers_in(policy.transformer)
        self._computing = _computing(policy)
        self._policy, self._read = policy, read
        self._place, self._seen, self._found = BEFORE, 0, self.forward

    def there_and_back(self) -> None:
        """Do both passes."""
        velocity = self.there()
        self._found = self.backward
        velocity.sum().backward()
        self._come_to(BEFORE)

    def there(self) -> Tensor:
        """Do the forward pass of a sample, as for training; return its velocity."""
        self._seen = self._read()
        with self._hooks():
            velocity = velocity_of_one(self._policy)
        self._come_to(AFTER)
        self.velocity_bytes = velocity.nbytes
        return velocity

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Watch the parts while the body runs; what it computes is watched on its way back, too."""
        with ExitStack() as stack:
            for name, block in self.blocks.items():
                enter, leave = partial(self._on_enter, name), partial(self._on_leave, name)
                entered = block.register_forward_pre_hook(enter, with_kwargs=True)
                left = block.register_forward_hook(leave)
                stack.callback(entered.remove)
                stack.callback(left.remove)
            for name, module in self._computing.named_children():
                if name not in FAMILIES[self._policy.config.family].blocks:
                    hook = partial(self._on_other, name)
                    for own in _called(module):
                        stack.callback(own.register_forward_pre_hook(hook).remove)
            yield

    def _on_enter(self, name: str, block: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = inspect.signature(block.forward).bind(*args, **kwargs).arguments
        streams = [given[stream] for stream in self._streams]
        self.cuts[name] = sum(stream.nbytes for stream in streams if stream is not None)
        self._come_to(name)
        if name == self._first:
            self._on_way_back((args, kwargs), BEFORE)

    def _on_leave(self, name: str, block: nn.Module, args: Any, made: Any) -> None:
        self._on_way_back(made, name)

    def _on_other(self, name: str, *_: Any) -> None:
        if self._place == self._last:
            self._come_to(AFTER)
        self.outside[name] = self._place

    def _on_way_back(self, tensors: Any, name: str) -> None:
        """Come to a part when the first of the gradients of what leaves it is used.

        Autograd computes what was computed last first: all that came later is done by then.
        """
        own = [t for t in tree_leaves(tensors) if isinstance(t, Tensor) and t.requires_grad]
        if own:
            register_multi_grad_hook(own, lambda _: self._come_to(name), mode="any")

    def _come_to(self, name: str) -> None:
        now = self._read()
        self._found[self._place] += now - self._seen
        self._place, self._seen = name, now


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """Yield what is called of a module: of a list or a dict of modules, those in it."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        yield from module.children()
    else:
        yield module


def _held(passes: _Passes, config: RunConfig) -> tuple[Counter[str], ...]:
    """Return the bytes of each part: of weights without adapters, of what is trained, of its sum.

    A part of two experts is that of both.
    """
    weights, trained, summed = Counter[str](), Counter[str](), Counter[str]()
    size, has_lora = TORCH_DTYPES[config.model.dtype].itemsize, config.train.lora is not None
    named = (own for each in passes.transformers for own in each.named_parameters())
    for name, parameter in named:
        path = name.split(".")
        block = ".".join(path[:2])
        part = block if block in passes.blocks else passes.outside.get(path[0], BEFORE)
        if parameter.requires_grad:
            trained[part] += parameter.numel() * size
            summed[part] += parameter.numel() * _SUMMED
        if not (parameter.requires_grad and has_lora):
            weights[part] += parameter.numel() * size
    return weights, trained, summed
