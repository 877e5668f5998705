"""The check of ``train.lora.targets``: layers of the transformer that a LoRA can be attached to."""

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from digen_core.errors import ConfigError


def learning(names: Collection[str], idle: str) -> set[str]:
    """Return the names of layers or parameters that a velocity depends on.

    Args:
        names: dotted.
        idle: what is in those of the others, a regular expression; empty: there are none.
    """
    return {name for name in names if not (idle and re.search(idle, name))}


def check_targets(targets: Sequence[str], layers: Collection[str]) -> None:
    """Check that each target ends the name of a layer, as peft takes them.

    Args:
        targets: suffixes of names, such as to_q or to_out.0.
        layers: dotted names of all layers with a matrix of weights.

    Raises:
        ConfigError: one fits no layer, or what holds layers, too.
    """
    for target in targets:
        if not any(f".{layer}".endswith(f".{target}") for layer in layers):
            near = get_close_matches(target, sorted(_suffixes(layers)), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"for example {_examples(layers)}"
            raise ConfigError(
                f"train.lora.targets names {target!r}, but no linear layer of the transformer is "
                f"called so; {hint}"
            )
        holder = min((layer for layer in layers if f".{target}." in f".{layer}"), default=None)
        if holder is not None:
            raise ConfigError(
                f"train.lora.targets names {target!r}, a linear layer of some blocks, which in "
                f"others holds one, such as {holder!r}; name the layers in full, such as "
                f"{_one(target, layers)!r}"
            )


def check_modules(
    targets: Sequence[str], layers: Collection[str], modules: Mapping[str, object]
) -> None:
    """Check that nothing but layers is called as a target: peft takes whatever module is.

    Args:
        targets: that `check_targets` found to end names of layers.
        layers: dotted names of all layers with a matrix of weights.
        modules: of the transformer, by name.

    Raises:
        ConfigError: another module has the name of one, such as an activation.
    """
    for target in targets:
        others = {name for name in modules if f".{name}".endswith(f".{target}")} - {*layers}
        if others:
            name = min(others)
            raise ConfigError(
                f"train.lora.targets names {target!r}, a linear layer of some blocks, but "
                f"{name!r} is a {type(modules[name]).__name__}; name the layers in full, such as "
                f"{_one(target, layers)!r}"
            )


def _suffixes(layers: Collection[str]) -> set[str]:
    """Return all dotted ends of names, but for those that are numbers."""
    parts = [layer.split(".") for layer in layers]
    ends = {".".join(own[place:]) for own in parts for place in range(len(own))}
    return {end for end in ends if not end[0].isdigit()}


def _one(target: str, layers: Collection[str]) -> str:
    return min(layer for layer in layers if f".{layer}".endswith(f".{target}"))


def _examples(layers: Collection[str]) -> str:
    ends = {layer.rpartition(".")[2] for layer in layers}
    return ", ".join(sorted(end for end in ends if not end.isdigit())[:8])
