"""A transformer is cut into runs of its blocks, of which each stage loads its own."""

from itertools import combinations, pairwise
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.gang import stage_files
from digen_core.gang.cutting import cut
from digen_core.gang.members import Gang
from digen_core.gang.runs import runs_of
from digen_core.gang.stage_files import load_stage, without_numbers
from digen_core.models.loading import load_trainable
from digen_core.models.policy import TRAINER_PARTS
from support.families import PUBLISHED, load_tiny
from support.paths import ROOT
from support.tiny_policies import TINY

CPU = torch.device("cpu")


def member(stage: int, stages: int, blocks: tuple[int, ...] = ()) -> Gang:
    return Gang(stage, stages, stages=stages, stage_blocks=blocks)


def num_bytes(module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.data())
def test_the_largest_run_is_as_small_as_can_be(sizes, data):
    stages = data.draw(st.integers(1, len(sizes)))
    runs = runs_of(sizes, stages)
    assert [n for run in runs for n in run] == list(range(len(sizes)))
    assert len(runs) == stages
    assert all(runs)

    def largest(ends) -> int:
        return max(sum(sizes[first:end]) for first, end in pairwise([0, *ends, len(sizes)]))

    every = combinations(range(1, len(sizes)), stages - 1)
    assert largest([run.stop for run in runs[:-1]]) == min(map(largest, every))


def test_the_config_may_say_where_to_cut():
    assert runs_of([1] * 6, 3, (1, 3, 2)) == [range(1), range(1, 4), range(4, 6)]


class Watched:
    """A file of weights that notes which of them are read."""

    read: ClassVar[list[str]] = []

    def __init__(self, *arguments, **settings):
        self.file = safe_open(*arguments, **settings)

    def __enter__(self):
        self.opened = self.file.__enter__()
        return self

    def __exit__(self, *error):
        self.file.__exit__(*error)

    def keys(self):
        return self.opened.keys()

    def get_tensor(self, name):
        self.read.append(name)
        return self.opened.get_tensor(name)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stage_is_its_part_of_the_whole_and_reads_no_more(
    tiny_families, family, dtype, monkeypatch
):
    monkeypatch.setattr(stage_files, "safe_open", Watched)
    whole = load_tiny(tiny_families[family], family, dtype).transformer
    expected = whole.state_dict() | dict(whole.named_buffers())
    folder, row = Path(tiny_families[family]) / "transformer", FAMILIES[family]
    lists = tuple(f"{name}." for name in row.blocks)
    outside = {name for name in whole.state_dict() if not name.startswith(lists)}
    for stages in range(2, sum(len(getattr(whole, name)) for name in row.blocks) + 1):
        names: list[str] = []
        for stage in range(stages):
            Watched.read.clear()
            found = load_stage(folder, row, member(stage, stages), getattr(torch, dtype), CPU)
            assert sorted(Watched.read) == sorted(found.state_dict())
            for name, value in (found.state_dict() | dict(found.named_buffers())).items():
                assert value.dtype == expected[name].dtype, name
                assert torch.equal(value, expected[name]), name
            assert outside <= found.state_dict().keys()
            names += found.state_dict().keys() - outside
        assert sorted(names) == sorted(whole.state_dict().keys() - outside), "each block once"


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stage_of_a_published_model_holds_its_blocks_and_little_more(family):
    folder = ROOT / "deployments/model_configs" / PUBLISHED[family] / "transformer"

    def on_meta():
        return without_numbers(stage_files.AutoModel.load_config(folder), torch.bfloat16)

    whole, largest, heaviest = num_bytes(on_meta()), 0, 0
    # FLUX.2's modulations are no part of its blocks: 5% of klein 4B, which has 25 large ones
    # Z-Image's refiners are four blocks more
    outside, most = {"flux2": (0.06, 0.31), "z_image": (0.12, 0.38)}.get(family, (0.03, 0.29))
    for stage in range(4):
        own = on_meta()
        cut(own, FAMILIES[family], member(stage, 4))
        blocks = sum(num_bytes(getattr(own, name)) for name in FAMILIES[family].blocks)
        assert num_bytes(own) - blocks < outside * whole
        largest, heaviest = max(largest, num_bytes(own)), max(heaviest, blocks)
    assert largest < most * whole
    if family == "flux":  # 9 of its large blocks: no cut is better; and what each stage has
        assert heaviest == pytest.approx(6.117e9, rel=1e-4)
        assert largest == pytest.approx(6.245e9, rel=1e-4)


def test_a_model_without_safetensors_is_refused(tiny_families, tmp_path):
    folder = Path(tiny_families["sd3"]) / "transformer"
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=r"has no diffusion_pytorch_model.safetensors; save"):
        load_stage(tmp_path, FAMILIES["sd3"], member(0, 2), torch.float32, CPU)


def test_files_of_a_large_model_are_found_by_their_index(tiny_families, tmp_path):
    whole = load_tiny(tiny_families["sd3"], "sd3").transformer
    whole.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found = load_stage(tmp_path, FAMILIES["sd3"], member(1, 2), torch.float32, CPU)
    assert all(torch.equal(v, whole.state_dict()[n]) for n, v in found.state_dict().items())


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"stages": 4}, "parallel.stages is 4, more than the 2 blocks of model.path"),
        ({"stages": 2, "stage_blocks": (1, 2)}, r"stage_blocks \[1, 2\] are 3 blocks together"),
        ({"stages_by_size": ((2, 2),)}, r"stages_by_size \[2, 2\] are 4 blocks together"),
    ],
)
def test_stages_of_other_blocks_than_a_model_has_are_not_loaded(tiny_flux, parallel, message):
    """Of a hub id a run may have begun without a look at its blocks."""
    model = {"path": tiny_flux, "device": "cpu", **TINY}
    config = RunConfig.model_validate({"model": model, "parallel": parallel})
    size = max(config.parallel.stages, 2)
    gang = member(1, size, config.parallel.blocks_of(size))
    with pytest.raises(ConfigError, match=message):
        load_trainable(config, TRAINER_PARTS, gang)
