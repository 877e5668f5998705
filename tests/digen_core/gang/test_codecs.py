"""Codecs of cuts: what they send, what is made of it, and that each row is coded by itself."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from digen_core.config.cuts import CutConfig
from digen_core.gang.codecs import Codec, Codecs, CodedCuts, TopK, through
from support.paths import ROOT

NAMES = ("none", "bf16", "int8", "int4", "topk")


def codec_of(name: str, ratio: float = 4.0) -> Codec:
    return Codecs.of(CutConfig(block=1, backward=name, topk_ratio=ratio)).back


def streams(rows=3, tokens=5, channels=48, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + channels)
    x = torch.randn(rows, tokens, channels, generator=generator, dtype=torch.float64)
    x[..., 7] *= 30  # one channel is far above the others, as in real models
    return x.to(dtype)


def num_bytes(codec: Codec, x: torch.Tensor) -> int:
    return sum(part.nbytes for part in codec.encode(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [48, 64, 33])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_fits_what_was_made_ready_for_it(name, channels, dtype):
    codec, x = codec_of(name), streams(channels=channels, dtype=dtype)
    sent, empty = codec.encode(x), codec.empty(x)
    assert [(part.shape, part.dtype) for part in sent] == [(e.shape, e.dtype) for e in empty]
    found = codec.decode(sent, x)
    assert found.shape == x.shape
    assert found.dtype == x.dtype


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_coded_by_itself(name):
    x, codec = streams(rows=6), codec_of(name)
    whole = through(codec, x)
    parts = torch.cat([through(codec, x[:1]), through(codec, x[1:4]), through(codec, x[4:])])
    assert torch.equal(whole, parts)


def test_bytes_of_a_token_of_3072_channels_against_bfloat16():
    x = torch.randn(2, 8, 3072, dtype=torch.bfloat16)
    dense = x.nbytes
    assert num_bytes(codec_of("none"), x) == dense
    assert num_bytes(codec_of("bf16"), x) == dense
    assert num_bytes(codec_of("int8"), x) == 2 * 8 * (3072 + 4)  # 1.997 times less
    assert num_bytes(codec_of("int4"), x) == 2 * 8 * (3072 // 2 + 2 * 3072 // 32)  # 3.56 times less
    assert num_bytes(codec_of("topk", 10), x) == 2 * 4 * int(8 * 3072 / 20)
    assert dense / num_bytes(codec_of("topk", 10), x) == pytest.approx(10, rel=1e-3)


def test_integers_by_hand():
    x = torch.tensor([[[254.0, -127.0, 1.0, 0.0]]])  # the scale is 2
    numbers, scale = codec_of("int8").encode(x)
    assert numbers.tolist() == [[[127, -64, 0, 0]]]  # to the even one
    assert scale.tolist() == [[[2.0]]]
    assert through(codec_of("int8"), x).tolist() == [[[254.0, -128.0, 0.0, 0.0]]]
    packed, scale = codec_of("int4").encode(torch.tensor([[[7.0, -7.0, 1.2, 0.0]]]))
    assert scale.tolist() == [[[[1.0]]]]
    assert packed[0, 0, 0, :3].tolist() == [15 + 16 * 1, 9 + 16 * 8, 8 + 16 * 8]
    assert through(codec_of("int4"), torch.tensor([[[7.0, -7.0, 1.2, 0.0]]])).tolist() == [
        [[7.0, -7.0, 1.0, 0.0]]
    ]


def test_the_largest_numbers_by_hand():
    x = torch.tensor([[[1.0, -5.0, 2.0, 0.5], [3.0, 0.0, -4.0, 1.0]]])
    assert through(TopK(2.0), x).tolist() == [[[0, -5, 0, 0], [0, 0, -4, 0]]]


def test_a_large_sample_is_chosen_from_in_equal_chunks():
    x = torch.zeros(1, 2, 50_000)  # 2 chunks of 50,000
    x[0, 0, 49_999], x[0, 1, 0], x[0, 1, 49_999] = 3.0, -2.0, 1.0
    assert torch.equal(through(TopK(1000.0), x), x)


@given(st.floats(1e-30, 1e30), st.sampled_from(["int8", "int4"]))
def test_the_error_is_half_a_step_at_most(scale, name):
    x = streams() * scale
    most = {"int8": 127, "int4": 7}[name]
    group = {"int8": 48, "int4": 32}[name]
    blocks = torch.nn.functional.pad(x, (0, -48 % group)).unflatten(-1, (-1, group))
    step = (blocks.abs().amax(-1, keepdim=True) / most).expand_as(blocks).flatten(-2)[..., :48]
    # a scale of int4 is rounded to 8 bits: so are the numbers of its largest step
    slack = {"int8": 1e-5, "int4": most / 2**8}[name]
    assert ((through(codec_of(name), x) - x).abs() <= step * (0.5 + slack)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(name, value):
    x = streams(rows=2)
    x[1, 2, 3] = value
    found = through(codec_of(name), x)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name):
    x = torch.zeros(2, 3, 32)
    assert torch.equal(through(codec_of(name), x), x)


@pytest.mark.parametrize("there", ["none", "int8"])
def test_the_gradient_of_a_stream_is_that_of_the_coded_one_coded(there):
    codecs = Codecs.of(CutConfig(block=1, forward=there, backward="int4"))
    x, upstream = streams().requires_grad_(), streams(channels=48).flip(0)
    found = codecs.crossed(x)
    assert torch.equal(found, through(codecs.there, x.detach()))
    (gradient,) = torch.autograd.grad(found, x, upstream)
    assert torch.equal(gradient, through(codecs.back, upstream))
    assert not torch.equal(gradient, upstream)


def test_cuts_can_be_left_uncoded():
    cuts = CodedCuts([CutConfig(block=2)])
    x = streams()
    assert cuts.blocks == {2}
    assert torch.equal(cuts.at(1).crossed(x), x)
    coded = cuts.at(2).crossed(x)
    assert not torch.equal(coded, x)
    with cuts.uncoded():
        assert torch.equal(cuts.at(2).crossed(x), x)
    assert torch.equal(cuts.at(2).crossed(x), coded)


def test_only_what_crosses_cuts_is_coded():
    """Sums of gradients, versions and optimizer states accumulate: they travel as they are."""
    packages = ("digen_core", "tasks", "flows")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    coding = {path.relative_to(ROOT) for path in files if "gang.codecs import" in path.read_text()}
    assert set(map(str, coding)) == {
        "digen_core/gang/cutting.py",
        "digen_core/gang/stages.py",
        "digen_core/models/pipeline/policy.py",
        "digen_core/models/policy.py",
    }
