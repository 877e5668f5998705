"""digen bench stages: steps and packs of real stages, between which links are emulated."""

import pytest
import torch
from rich.console import Console

from deployments.bench.gang.stages import Measured, bench_stages, link_of, print_bench
from digen_core.config.run import RunConfig
from digen_core.errors import UserError


def test_the_table_by_hand():
    link = link_of(0.03, 0.02)
    assert link.bytes_per_second == 3.75e6
    console = Console(record=True, width=100)
    none = Measured("none", 2.0, 4.0, 1_000_000, 3_000_000, 1.0)
    coded = Measured("int8", 1.0, 1.6, 250_000, 750_000, 0.99957)
    print_bench([none, coded], link, 8, console)
    text = " ".join(console.export_text().split())
    assert "8 samples through stages, 30 Mb/s and 20 ms between them" in text
    assert "none 1.000 2.000 1.00 3.000 4.000 1.00 1.0000" in text
    assert "int8 0.250 1.000 2.00 0.750 1.600 2.50 0.9996" in text


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"stages": 5}, "stages is 5, more than the 4 blocks"),
        ({"stage_blocks": [1, 1]}, r"\[1, 1\] are 2 blocks together, but .* has 4"),
        ({"stages": 2, "context_parallel": 2}, "goes not with parallel.context_parallel"),
    ],
)
def test_stages_that_cannot_be_are_refused(parallel, message):
    """Before there are any workers, which would wait for each other."""
    config = RunConfig.model_validate({"parallel": parallel})
    with pytest.raises(UserError, match=message):
        bench_stages(config, link_of(1, 0), ["none"], samples=2, rounds=1)


def test_links_between_gpus_are_not_emulated(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="here is a GPU; hide it: CUDA_VISIBLE_DEVICES= digen"):
        bench_stages(RunConfig(), link_of(1, 0), ["none"], samples=2, rounds=1)


@pytest.mark.nightly
def test_the_link_takes_as_long_as_it_says():
    """Of 8 samples 28 tokens x 96 numbers cross for a step, and for a pack once more, back."""
    num_bytes = 8 * 28 * 96 * 4
    link = link_of(num_bytes * 8 / 1e9, 0.1)  # a second for the streams of a step
    none, coded = bench_stages(RunConfig(), link, ["none", "int8/int4"], samples=8, rounds=1)
    assert none.step_bytes >= num_bytes
    assert none.step > 1.1
    assert none.pack > 2.2  # there and back
    assert none.cosine == pytest.approx(1, abs=1e-9)
    assert coded.step_bytes < 0.5 * none.step_bytes
    assert coded.pack_bytes < 0.4 * none.pack_bytes
    assert coded.step < none.step
    assert none.pack > 1.6 * coded.pack
    assert 0.98 < coded.cosine < 1
