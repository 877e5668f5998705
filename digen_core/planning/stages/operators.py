"""The operators of blocks, as torch.export finds them, and what each computes.

It is for looking at only. An exported graph holds for one shape and one number of samples, so runs
cut transformers between blocks, which are the stock modules of diffusers.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import networkx as nx
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.fx.node import map_arg
from torch.utils.flop_counter import FlopCounterMode

from digen_core.config.run import RunConfig
from digen_core.gang.members import ALONE
from digen_core.planning.memory_count import on_meta
from digen_core.planning.sizes import velocity_of_one
from digen_core.planning.stages.blocks import named_blocks

_MOVES: Final = {"_assert_tensor_metadata", "clone", "dropout", "empty_like", "getitem", "type_as"}
"""Operators that compute nothing, beside views: they belong to what they are given."""

_SHORT: Final = {"scaled_dot_product_attention": "attention", "copy_": "copy"}


@dataclass(frozen=True)
class Operators:
    """What a block of one kind is made of."""

    kind: str  # the list of blocks
    count: int  # of all operators
    graph: "nx.DiGraph[str]"
    """Layers by their path, what is computed between them, and the block's inputs. Nodes have
    ``label``, ``flops`` of a sample's forward pass, and ``is_layer``."""


def operators_of(config: RunConfig, folder: Path) -> list[Operators]:
    """Export the first block of each kind of a recipe's transformer.

    Args:
        config: of the run.
        folder: with the model's settings.

    Raises:
        OSError: the settings are not there.
        UserError: the model has other sizes than the config asks for.
        ValueError: no module matches the config's LoRA targets.
    """
    policy = on_meta(config, folder, ALONE)
    firsts = {name: block for name, block in named_blocks(policy).items() if name.endswith(".0")}
    calls: dict[str, tuple[Any, Any]] = {}
    for name, block in firsts.items():

        def keep(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            calls[name] = args, kwargs

        block.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        velocity_of_one(policy)
    return [_exported(name, block, *calls[name]) for name, block in firsts.items()]


def _exported(name: str, block: nn.Module, args: Any, kwargs: Any) -> Operators:
    program = torch.export.export(block, args, kwargs, strict=False)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    builder = _Builder(program.graph_signature.user_inputs, set(_layers(block)))
    for node in nodes:
        builder.add(node)
    _join_small(builder.graph)
    return Operators(name.removesuffix(".0"), len(nodes), builder.graph)


def _layers(block: nn.Module) -> Iterator[str]:
    """Yield the paths of the modules that are drawn as one: with their adapters."""
    for path, module in block.named_modules():
        is_leaf = not (any(module.children()) or isinstance(module, nn.Dropout))
        if isinstance(module, LoraLayer) or is_leaf:
            yield path


class _Builder:
    """A graph of what computes, to which operators are added in their order."""

    def __init__(self, inputs: Iterable[object], layers: Container[str]) -> None:
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self._layers = layers
        self._place: dict[str, str] = {}  # operator -> node that its result is from
        self._whole: dict[str, str] = {}  # view -> what it is of
        for name in inputs:
            if isinstance(name, str):
                self._add(name, name, is_layer=True)
                self._place[name] = name

    def add(self, node: Any) -> None:
        """Add an operator: to its layer, to what it is a view of, or as a node of its own."""
        given = [own.name for own in node.all_input_nodes if own.name in self._place]
        before = [self._place[name] for name in given]
        word, is_view = node.target.__name__.split(".")[0], getattr(node.target, "is_view", False)
        layer, moves = _layer_of(node, self._layers), is_view or word in _MOVES
        if is_view and given:
            self._whole[node.name] = self._whole.get(given[0], given[0])
        if moves and layer is None:
            if before:
                self._place[node.name] = before[0]
            return
        here = self._place[node.name] = layer or node.name
        self._add(here, layer or _SHORT.get(word, word), is_layer=layer is not None)
        self.graph.nodes[here]["flops"] += 0 if moves else _flops(node)
        self.graph.add_edges_from((own, here) for own in before if own != here)
        if word.endswith("_"):  # in place
            whole = self._whole.get(given[0], given[0])
            views = [name for name, own in self._whole.items() if own == whole]
            self._place |= dict.fromkeys([whole, *views], here)

    def _add(self, name: str, label: str, *, is_layer: bool) -> None:
        if name not in self.graph:
            self.graph.add_node(name, label=label, flops=0, is_layer=is_layer)


def _layer_of(node: Any, layers: Container[str]) -> str | None:
    """Return the outermost layer that an operator is in."""
    paths = (path for path, _ in node.meta.get("nn_module_stack", {}).values())
    return next((path for path in paths if path in layers), None)


def _flops(node: Any) -> int:
    args, kwargs = map_arg((node.args, node.kwargs), lambda own: own.meta["val"])
    with FlopCounterMode(display=False) as counter:
        node.target(*args, **kwargs)
    return int(counter.get_total_flops())


def _join_small(graph: "nx.DiGraph[str]") -> None:
    """Draw what is computed between layers as one, where only one operator takes it further."""
    for name in list(nx.topological_sort(graph)):
        after = list(graph.successors(name))
        pair = [graph.nodes[own] for own in (name, *after)]
        if len(after) != 1 or any(node["is_layer"] or node["flops"] for node in pair):
            continue
        words = [word for node in pair for word in node["label"].split(", ")]
        pair[1]["label"] = ", ".join(dict.fromkeys(words))
        graph.add_edges_from((before, after[0]) for before in graph.predecessors(name))
        graph.remove_node(name)
