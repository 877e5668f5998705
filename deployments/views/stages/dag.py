"""``digen size --dag``: a picture of a transformer's chain of blocks, and of what is in a block."""

from collections.abc import Sequence
from io import BytesIO
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Final

import networkx as nx
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from digen_core.config.run import RunConfig
from digen_core.gang.runs import runs_of
from digen_core.inputs.text import short
from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.operators import Operators
from digen_core.trace.charts import verbatim
from digen_core.trace.drawing import COLOURS
from digen_core.trace.page import png_of
from digen_core.transport.files import replace_bytes

_HEAT = colormaps["YlOrRd"]
_CUT: Final = "tab:blue"


def draw(config: RunConfig, chain: Chain, kinds: Sequence[Operators], path: Path) -> None:
    """Draw the chain, cut where the config says, above a block of each kind.

    Args:
        config: of the run.
        chain: its transformer.
        kinds: what its blocks are made of.
        path: of the picture; the ending says which format it has.
    """
    layers = [_layers(own.graph) for own in kinds]
    depth = max(map(len, layers))
    height = 2.2 + 0.5 * depth
    figure = Figure(figsize=(2.5 + 5.5 * len(kinds), height), layout="constrained")
    wide = [max(map(len, own)) for own in layers]
    ratios = {"width_ratios": wide, "height_ratios": (2.2, height - 2.2)}
    grid = figure.add_gridspec(2, len(kinds), **ratios)
    _draw_chain(figure.add_subplot(grid[0, :]), config, chain)
    for place, (own, found) in enumerate(zip(kinds, layers, strict=True)):
        _draw_block(figure.add_subplot(grid[1, place]), own, found, depth)
    replace_bytes(path, _svg_of(figure) if path.suffix == ".svg" else png_of(figure, COLOURS))


def _svg_of(figure: Figure) -> bytes:
    buffer = BytesIO()
    with rc_context({"svg.fonttype": "none"}):  # letters, not curves
        figure.savefig(buffer, format="svg")
    return buffer.getvalue()


def _stages_of(config: RunConfig, chain: Chain) -> list[range]:
    """Return the blocks of each of a config's stages, as a gang cuts them."""
    parallel = config.parallel
    sizes = [round(block.weight_bytes) for block in chain.blocks]
    return runs_of(sizes, parallel.stages, parallel.stage_blocks)


def _draw_chain(axes: Axes, config: RunConfig, chain: Chain) -> None:
    most = max(block.forward_flops for block in chain.blocks)
    for place, block in enumerate(chain.blocks):
        colour = _HEAT(0.4 * block.forward_flops / most)
        axes.add_patch(Rectangle((place, 0), 0.86, 1, facecolor=colour, edgecolor="0.3", lw=0.5))
    place = 0
    for kind, own in groupby(chain.blocks, lambda block: block.kind):
        flops = [block.forward_flops / 1e9 for block in own]
        text = f"{len(flops)} x {kind}\n{short(fmean(flops))} GFLOP each"
        axes.text(place, 1.15, text, fontsize=7)
        place += len(flops)
    stages = _stages_of(config, chain)
    for number, stage in enumerate(stages):
        held = sum(chain.blocks[n].weight_bytes for n in stage) / 1e9
        text = f"stage {number}: {len(stage)} blocks, {short(held)} GB"
        middle = (stage.start + stage.stop) / 2
        axes.text(middle, -0.2, text, fontsize=8, ha="center", va="top")
    for start in (stage.start for stage in stages[1:]):
        crossing = f"{short(chain.blocks[start].cut_bytes / 1e6)} MB"
        axes.vlines(start - 0.07, -0.7, 1.1, color=_CUT, linewidth=2)
        axes.text(start, -0.75, crossing, fontsize=8, ha="center", va="top", color=_CUT)
    axes.set(xlim=(-0.5, len(chain.blocks) + 0.5), ylim=(-1.1, 2.1))
    title = f"{verbatim(config.model.path)}: a sample at one denoising step"
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_axis_off()


def _layers(graph: "nx.DiGraph[str]") -> list[list[str]]:
    """Return the nodes from the inputs down, each below those that it is made of."""
    centre: dict[str, float] = {}

    def above(name: str) -> float:
        return fmean([centre[before] for before in graph.predecessors(name)] or [0.0])

    found = []
    for layer in nx.topological_generations(graph):
        ordered = sorted(layer, key=above)
        centre |= {name: n - (len(ordered) - 1) / 2 for n, name in enumerate(ordered)}
        found.append(ordered)
    return found


def _draw_block(axes: Axes, own: Operators, layers: Sequence[Sequence[str]], depth: int) -> None:
    places = {
        name: (n - (len(layer) - 1) / 2, -down)
        for down, layer in enumerate(layers)
        for n, name in enumerate(layer)
    }
    for before, after in own.graph.edges:
        _draw_arrow(axes, places[before], places[after])
    most = max(flops for _, flops in own.graph.nodes(data="flops"))
    for name, (x, y) in places.items():
        label, flops = own.graph.nodes[name]["label"], own.graph.nodes[name]["flops"]
        text = label.removeprefix("attn.") + (f"\n{short(flops / 1e9)}" if flops else "")
        colour = _HEAT(0.7 * (flops / most) ** 0.5) if flops else "white"
        box = {"boxstyle": "round,pad=0.25", "lw": 0.5, "edgecolor": "0.4", "facecolor": colour}
        axes.text(x, y, text, fontsize=6.5, ha="center", va="center", bbox=box)
    wide = max(map(len, layers)) / 2
    axes.set(xlim=(-wide, wide), ylim=(0.4 - depth, 0.6))
    axes.set_title(f"{own.kind}: {own.count} operators, GFLOP", fontsize=9)
    axes.set_axis_off()


def _draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow from a node to one below it: the further down, the fainter."""
    far = start[1] - end[1] > 1
    style = {
        "arrowstyle": "->",
        "connectionstyle": f"arc3,rad={0.18 if far else 0}",
        "color": "0.75" if far else "0.4",
        "linewidth": 0.7,
    }
    axes.annotate("", (end[0], end[1] + 0.28), (start[0], start[1] - 0.28), arrowprops=style)
