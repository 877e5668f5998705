"""The operators of a block compute what the block does."""

from pathlib import Path

import networkx as nx
import pytest

from deployments.cli import run
from digen_core.planning.stages.operators import operators_of
from support.paths import ROOT
from support.stages import chain_of_tiny, config_of


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", ["flux", "sd3", "wan"])
def test_operators_compute_what_their_block_does(tiny_families, family):
    folder = tiny_families[family]
    blocks = {block.name: block for block in chain_of_tiny(folder, family, 3, False).blocks}
    for found in operators_of(config_of(family), Path(folder)):
        graph = found.graph
        assert sum(dict(graph.nodes(data="flops")).values()) == (
            blocks[f"{found.kind}.0"].forward_flops
        )
        assert nx.is_directed_acyclic_graph(graph)
        assert nx.is_weakly_connected(graph)
        assert "hidden_states" in graph
        assert found.count > 2 * len(graph) / 3
        labels = [label for _, label in graph.nodes(data="label")]
        assert labels.count("attention") == (2 if family in ("sd3", "wan") else 1)
        for name, label in graph.nodes(data="label"):
            if label == "attention":  # of queries, keys, values at least
                assert graph.in_degree(name) >= 3


@pytest.mark.ci
def test_a_picture_of_the_blocks(tiny_families, tmp_path, capsys):
    job, path = str(ROOT / "deployments/configs/shapes.toml"), tmp_path / "blocks.svg"
    arguments = ["size", job, "--model.path", tiny_families["flux"], "--parallel.stages", "3"]
    assert run([*arguments, "--dag", str(path)]) == 0
    drawn = path.read_text()
    for text in ("stage 2: ", "attention", "single_transformer_blocks"):
        assert text in drawn
    assert "stage 3: " not in drawn
    assert "single_transformer_blocks.0-1" in capsys.readouterr().out
