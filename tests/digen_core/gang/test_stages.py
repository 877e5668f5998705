"""Members that hold stages compute what one device computes that holds all blocks."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch

from digen_core.gang.stages import PORTIONS_PER_STAGE
from digen_core.planning.stages.pipeline import Way, simulate
from support.edits import write_edit_2511
from support.families import FAMILIES, KONTEXT, MODELS, OFTEN, ROUNDED_TO_FLOAT32
from support.gang_cases import (
    Case,
    exported,
    gradients,
    samples,
    seconds_of_blocks,
    versions,
)
from support.gang_processes import run_gang
from support.gpu import DEVICES, require_gpus

pytestmark = pytest.mark.slow

INT8 = {"block": 1}
INT4 = {"block": 1, "backward": "int4"}
TOPK = {"block": 2, "forward": "int4", "backward": "topk"}

DAILY = {
    2: [
        Case("flux", stages=2, packs=2),
        Case("wan", stages=2, checkpointing=True, in_portions=False),
        Case("flux", stages=2, dtype="float16"),  # differentiated with several scales of the loss
        Case("sd3", stages=2, stage_blocks=(1, 1), cuts=(INT4,), checkpointing=True),
    ],
    3: [
        Case("flux", lora=False, stages=3, checkpointing=True),
        Case("hunyuan_video", lora=False, stages=3, stage_blocks=(1, 1, 2), cuts=(INT8, TOPK)),
    ],
    4: [
        Case("flux", stages=2, num_rows=3, packs=2),  # two shares
        Case("flux", stages=4, stage_blocks=(1, 1, 1, 1), cuts=(INT8, TOPK)),
        Case("sd3", lora=False, stages=2, num_rows=1),  # one of them has no pair of its own
    ],
}
OF_FOUR_BLOCKS = ("flux", "flux2", "hunyuan_video")
"""Families whose tiny model has two blocks of each kind; those of the others are two in all."""
OTHERS = [
    Case("z_image", stages=2, stage_blocks=(1, 1), cuts=(INT4,)),
    Case("wan-a14b", lora=False, stages=2, packs=2),
    Case("flux", lora=False, stages=2, dtype="float32"),
    Case("qwen_image", lora=False, stages=2, checkpointing=True),
    Case("qwen_image21", lora=False, stages=2, checkpointing=True),
    Case("qwen_image21", stages=2, edits=2),
    Case("z_image", lora=False, stages=2, checkpointing=True),
    Case("hunyuan_video", lora=False, stages=2, num_rows=1),
    Case("hunyuan_video15", lora=False, stages=2, checkpointing=True),
    Case("hunyuan_video15-i2v-distilled", lora=False, stages=2, edits=1),
    Case("flux2", lora=False, stages=2, checkpointing=True),
    Case("flux2", stages=2, edits=1),
    Case("ltx2", stages=2, checkpointing=True),
    Case("ltx2-2.3", lora=False, stages=2, checkpointing=True),
    Case("ltx2-2.5", lora=False, stages=2),
    Case("hunyuan_video", stages=3, checkpointing=True),
    Case("flux2", lora=False, stages=3, stage_blocks=(1, 1, 2), cuts=(INT8, TOPK)),
    Case("hunyuan_video", lora=False, stages=4),
    Case("flux2", lora=False, stages=4),
]
"""What a slice tries."""


def bound_of(case: Case) -> float:
    """Wan keeps some modules in float32, which round otherwise where fewer rows are computed.

    Its gradient by itself is float32, too, and the stages' parts of it are added up. Z-Image and
    LTX-2 turn queries and keys in float32, and Sana's linear attention computes in it.
    """
    if case.family in ("z_image", "ltx2", "sana"):
        return 1e-6
    if case.family == "wan":
        return 1e-10 if case.lora and not case.in_portions else 1e-6
    return {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3}[case.dtype]


def all_cases(size: int) -> list[Case]:
    """Every family cut in so many parts, with adapters and all weights, checkpointing or not."""
    return [
        Case(
            family, lora, stages=size, checkpointing=checkpointing, in_portions=in_portions, packs=2
        )
        for family, lora, checkpointing, in_portions in product(FAMILIES, *3 * [(False, True)])
        if size == 2 or family in OF_FOUR_BLOCKS
    ]


def cut_anywhere(size: int) -> list[Case]:
    """Models of four blocks, cut at every place that leaves each of the stages one."""
    blocks = [own for own in product(range(1, 4), repeat=size) if sum(own) == 4]
    return [
        Case(family, lora, stages=size, stage_blocks=own)
        for family, lora, own in product(OF_FOUR_BLOCKS, (False, True), blocks)
    ]


def compare(size: int, folder, folders: dict[str, str], cases: list[Case], device="cpu") -> None:
    require_gpus(device, size)
    cases = [replace(case, device=device) for case in cases]
    leader, *followers = run_gang(size, folder, gradients, folders, cases, device=device)
    assert all(found is None for follower in followers for found in follower)
    for case, found in zip(cases, leader, strict=True):
        bound = bound_of(case)
        assert found.same_names, case
        assert found.error < bound, (case, found.error)
        metrics, expected = asdict(found.metrics), asdict(found.expected)
        assert metrics.pop("nonfinite") == expected.pop("nonfinite") == ""
        assert metrics.pop("agreement") == expected.pop("agreement")
        assert metrics.pop("replay_errors") == pytest.approx(
            expected.pop("replay_errors"), abs=bound
        ), case
        assert metrics == pytest.approx(expected, rel=bound, abs=bound), case


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "size",
    [pytest.param(2, marks=pytest.mark.ci), 3, pytest.param(4, marks=pytest.mark.families)],
)
def test_stages_give_the_gradient_of_the_whole(tiny_families, tmp_path, size, device):
    compare(size, tmp_path, tiny_families, DAILY[size], device)


@pytest.mark.families
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_stages_of_other_models_give_the_gradient_of_the_whole(tiny_families, tmp_path, case):
    compare(case.stages, tmp_path, tiny_families, [case])


@pytest.mark.nightly
def test_stages_of_edits_give_the_gradient_of_the_whole(tiny_families, tmp_path):
    editors = {
        "flux": tiny_families[KONTEXT],
        "qwen_image-edit-plus": write_edit_2511(tmp_path / "2511"),
    }
    cases = [
        Case("flux", stages=2, checkpointing=True, edits=1),
        Case("flux2", lora=False, stages=2, edits=2),
        Case("qwen_image-edit", stages=2, edits=1),
        Case("qwen_image-edit-plus", lora=False, stages=2, checkpointing=True, edits=3),
        Case("wan-ti2v", stages=2, checkpointing=True, edits=1),
        Case("wan-i2v", lora=False, stages=2, edits=1),
    ]
    compare(2, tmp_path, tiny_families | editors, cases)


@pytest.mark.families
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_stages_give_the_gradient_of_the_whole_for_every_cut(tiny_families, tmp_path, size):
    compare(size, tmp_path, tiny_families, all_cases(size))


@pytest.mark.families
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3])
def test_stages_that_are_cut_anywhere_give_the_gradient_of_the_whole(tiny_families, tmp_path, size):
    compare(size, tmp_path, tiny_families, cut_anywhere(size))


@pytest.mark.families
@pytest.mark.timeout(900)
def test_stages_of_compiled_blocks(tiny_families, tmp_path):
    case = Case("flux", stages=2, checkpointing=True, dtype="float32", compile=True)
    compare(2, tmp_path, tiny_families, [case])


@pytest.mark.ci
def test_stages_compute_at_the_same_time(tiny_families, tmp_path):
    """A block takes a while, there and back: of 2 stages with 8 portions each waits for 1 in 9.

    A busy machine can only hide it, the less the longer blocks take: one time suffices.
    """
    config = Case("sd3", stages=2).config(tiny_families["sd3"])  # of 2 blocks
    shares = []
    for seconds in (0.05, 0.1, 0.2, 0.4, 0.8):
        (folder := tmp_path / str(seconds)).mkdir()
        times = run_gang(2, folder, seconds_of_blocks, config, 8, seconds)
        shares.append([waited / whole for whole, waited in times])
        assert min(shares[-1]) > 0.5
        if max(shares[-1]) < 0.8:
            return
    pytest.fail(f"stages waited for each other: {shares}")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_four_stages_take_what_a_simulation_says(tiny_families, tmp_path):
    """Within 5%: blocks take a while, on a busy machine a longer one, and the rest next to nothing.

    A pass of the reference, one there and one back go through four equal stages in 16 portions.
    """
    config = Case("flux", stages=4).config(tiny_families["flux"])
    count = 4 * PORTIONS_PER_STAGE
    way = Way(np.zeros(4), np.ones(4), np.full(3, 1e-9), np.zeros(3))
    shares = []
    for seconds in (0.8, 1.6, 3.2):
        simulated = 3 * simulate(way, [seconds] * count)
        assert simulated == pytest.approx(3 * (count + 3) * seconds)
        (folder := tmp_path / str(seconds)).mkdir()
        times = run_gang(4, folder, seconds_of_blocks, config, count, seconds)
        shares.append(max(waited for _, waited in times) / simulated)
        assert shares[-1] > 0.99
        if shares[-1] < 1.05:
            return
    pytest.fail(f"the stages took {shares} of what was simulated")


@pytest.mark.parametrize("models", [OFTEN, pytest.param(MODELS, marks=pytest.mark.families)])
def test_stages_sample_what_the_whole_samples(tiny_families, tmp_path, models):
    cases = [Case(model, stages=2, num_rows=3) for model in models]
    cases += [
        Case("flux", stages=2, num_rows=3, precision="float8"),
        Case("sd3", lora=False, stages=2, num_rows=3, precision="float8"),
    ]
    members = run_gang(2, tmp_path, samples, tiny_families, cases)
    for case, found in zip(cases, zip(*members, strict=True), strict=True):
        latents, logprobs = found[0].expected
        for member in found:
            assert torch.equal(member.latents, found[0].latents), case
            # a trajectory is in float32 where modules are
            bound = 1e-6 if case.family in ROUNDED_TO_FLOAT32 else 1e-12
            torch.testing.assert_close(member.latents, latents, rtol=0, atol=bound)
            torch.testing.assert_close(member.logprobs, logprobs, rtol=0, atol=bound)


@pytest.mark.ci
def test_stages_have_the_weights_of_each_version(tiny_families, tmp_path):
    cases = [
        Case("flux", stages=2),
        Case("flux", lora=False, stages=2),
        Case("hunyuan_video", stages=2),
        Case("sd3", lora=False, stages=2),
        Case("wan-a14b", stages=2),
    ]
    for member in run_gang(2, tmp_path, versions, tiny_families, cases):
        for case, found in zip(cases, member, strict=True):
            assert found.same_initial, case
            bound = 1e-6 if case.family == "wan" else 1e-10  # as above
            assert all(error < bound for error in found.errors), (case, found.errors)


def test_the_leader_exports_all_blocks(tiny_families, tmp_path):
    cases = [Case("sd3", lora=False, stages=2), Case("hunyuan_video", lora=False, stages=2)]
    models = ("wan-a14b", "ltx2", "ltx2-2.5")
    cases += [Case(model, lora=False, stages=2) for model in models]
    leader, _ = run_gang(2, tmp_path, exported, tiny_families, cases, tmp_path / "out")
    assert leader == [True] * len(cases)
