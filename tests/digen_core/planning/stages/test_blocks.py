"""What each block takes: in sum what the whole does, and at a cut what a stage sends."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deployments.cli import run
from deployments.views.stages.blocks import rows_of
from digen_core.config.cuts import CutConfig
from digen_core.config.families import FAMILIES as ROWS
from digen_core.gang.cutting import Crossing, cut
from digen_core.gang.members import Gang
from digen_core.planning.sizes import sizes_of
from digen_core.planning.stages.blocks import chain_of
from digen_core.planning.stages.chain import Block, Chain
from support.families import AT_NIGHT, EDITORS, MODELS, family_of, load_tiny, sliced
from support.paths import ROOT
from support.stages import chain_of_tiny, config_of

pytestmark = pytest.mark.slow

JOB = str(ROOT / "deployments/configs/shapes.toml")


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("family", "rank"),
    [
        *sliced((*MODELS, *EDITORS), 3),
        *((family, None) for family in ("flux", "wan")),
    ],
)
def test_the_parts_are_the_whole(tiny_families, family, rank):
    folder, settings = tiny_families[family], {"rank": rank, "again": rank is None}
    found = chain_of_tiny(folder, family, rank, rank is None)
    whole = sizes_of(config_of(family, **settings), Path(folder))
    assert found.total("forward_flops") == whole.step_flops
    assert found.total("forward_flops") + found.total("backward_flops") == whole.pair_flops
    assert found.total("weight_bytes") == whole.weight_bytes
    assert found.total("trained_bytes") == whole.push_bytes
    assert all(block.forward_flops > 0 < block.backward_flops for block in found.blocks)
    transformer = json.loads(Path(folder, "transformer/config.json").read_text())
    assert len(found.blocks) == ROWS[family_of(family)].num_blocks(transformer)
    if rank is None:  # of every product one for the input, one for the weight, and once more
        for block in found.blocks[:-1]:
            assert block.backward_flops == 3 * block.forward_flops
            assert block.trained_bytes == block.weight_bytes


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", [*MODELS, *AT_NIGHT])
def test_what_crosses_a_cut_is_what_a_stage_sends(tiny_families, family):
    """The real forward pass of a first stage with numbers, which ends at its cut."""
    folder = tiny_families[family]
    found = chain_of_tiny(folder, family, 3, False)
    policy = load_tiny(folder, family, "bfloat16")
    gang, streams = Gang(0, 2, stages=2), ROWS[family_of(family)].streams
    for transformer in policy.transformers:
        cut(transformer, ROWS[family_of(family)], gang)
    crossing = Crossing(streams, lambda like: pytest.fail("nothing comes to the first stage"))
    x = torch.randn(1, *policy.latent_shape, dtype=policy.latent_dtype)
    condition = {
        name: value
        for name, value in policy.blank_condition(1).items()
        if not name.startswith("negative_")
    }
    with torch.no_grad(), crossing.under_way():
        policy.predict(x, torch.tensor([0.5]), condition)
    assert found.num_rows == 1 + policy.guided
    sent = sum(tensor.nbytes for tensor in crossing.left)
    assert found.blocks[len(found.blocks) // 2].cut_bytes == found.num_rows * sent > 0
    assert found.velocity_bytes == found.num_rows * x.nbytes


def test_blocks_with_coded_cuts_are_counted_like_others(tiny_families):
    folder, config = tiny_families["flux"], config_of("flux")
    cuts = (CutConfig(block=1), CutConfig(block=2, forward="int4", backward="topk"))
    coded = config.model_copy(update={"model": config.model.model_copy(update={"cuts": cuts})})
    found, plain = chain_of(coded, Path(folder)), chain_of_tiny(folder, "flux", 3, False)
    fields = ("name", "forward_flops", "backward_flops", "weight_bytes", "cut_bytes")
    for own, other in zip(found.parts, plain.parts, strict=True):
        assert [getattr(own, name) for name in fields] == [getattr(other, name) for name in fields]


@pytest.mark.ci_but_one
@pytest.mark.parametrize("sides", [(64, 32), (32, 64)])
def test_of_several_sizes_blocks_are_counted_with_the_largest(tiny_families, sides):
    """Whatever size evaluations have: it has to fit."""
    folder, config = Path(tiny_families["flux"]), config_of("flux")
    sizes = tuple((side, 48, 1) for side in sides)
    found, alone = (
        chain_of(config.model_copy(update={"model": config.model.model_copy(update=own)}), folder)
        for own in ({"sizes": sizes}, {"height": 64})
    )
    assert found == alone


def test_a_block_by_hand(tiny_families):
    """A block of FLUX with one stream: 24 tokens of text and 6 of the image, of width 64."""
    block = chain_of_tiny(tiny_families["flux"], "flux", None, True).blocks[-1]
    tokens, width = 24 + 2 * 3, 64
    modulation = 3 * width**2  # once for all tokens
    linear = tokens * (3 + 4 + 5) * width**2  # q, k, v; into the feed-forward; and out
    attention = 2 * tokens**2 * width
    assert block.forward_flops == 2 * (modulation + linear + attention)
    assert block.name == "single_transformer_blocks.1"
    head = width // 4
    biases = (3 + 3 + 4 + 1) * width
    numbers = (3 + 3 + 4 + 5) * width**2 + biases + 2 * head
    assert block.weight_bytes == 2 * numbers
    assert block.cut_bytes == 2 * tokens * width


def test_with_checkpointing_a_block_keeps_what_comes_to_it(tiny_families):
    folder = tiny_families["flux"]
    again = chain_of_tiny(folder, "flux", None, True)
    assert [block.graph_bytes for block in again.blocks] == list(again.of_blocks("cut_bytes"))
    kept = chain_of_tiny(folder, "flux", 3, False)
    assert kept.total("graph_bytes") > 5 * again.total("graph_bytes")


def test_parts_that_are_alike_are_one_row():
    block = Block("blocks.0", 2e9, 3e9, 1e6, 1e6, 1e6, 1e6)
    blocks = [replace(block, name=f"blocks.{n}") for n in range(3)]
    other = replace(block, name="others.0")
    before, after = (Block(name, 1e9, 0, 0, 0) for name in ("before", "after"))
    chain = Chain(before, (*blocks, other), after)
    assert [[part.name for part in run] for run in chain.runs()] == [
        ["before"],
        ["blocks.0", "blocks.1", "blocks.2"],
        ["others.0"],
        ["after"],
    ]
    rows = rows_of(chain)
    assert list(rows) == ["before", "blocks.0-2", "others.0", "after", "all"]
    assert rows["all"]["forward", "GFLOP"] == "10"
    assert rows["before"]["cut", "MB"] == rows["all"]["cut", "MB"] == ""


def test_size_prints_blocks(tiny_families, capsys, monkeypatch):
    folder = tiny_families["flux"]
    chain = chain_of_tiny(folder, "flux", 3, False)
    monkeypatch.setattr("deployments.views.stages.blocks.chain_of", lambda config, found: chain)
    arguments = ["size", JOB, "--model.path", folder, "--blocks"]
    assert run([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["num_rows"]) == ("shapes", 1)
    names = [part["name"] for part in row["parts"]]
    assert names == [
        "before the blocks",
        *(f"transformer_blocks.{n}" for n in range(2)),
        *(f"single_transformer_blocks.{n}" for n in range(2)),
        "after the blocks",
    ]
    assert run([*arguments, "--markdown"]) == 0
    heading, _, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("| of a sample | forward, GFLOP | ")
    assert lines[-1].startswith("| all | ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks"], "--blocks and --dag are of one CONFIG"),
        ([JOB, "--blocks", "--memory"], "and without --memory"),
        ([JOB, "--dag", "blocks.pdf"], "--dag is blocks.pdf; use a name with .png or .svg"),
        ([JOB, "--dag", "nowhere/blocks.png"], "in a folder that is there"),
        ([JOB, "--dag", "blocks.png", "--parallel.stages", "9"], "more than the "),
    ],
)
def test_blocks_that_cannot_be_shown_are_one_line(arguments, message, capsys, tmp_path):
    arguments = [str(tmp_path / a) if a.startswith("blocks") else a for a in arguments]
    assert run(["size", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message.replace("blocks.pdf", str(tmp_path / "blocks.pdf")) in err
