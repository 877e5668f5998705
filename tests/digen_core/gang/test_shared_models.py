"""A gang computes what one device computes: gradients of packs, samples, velocities of versions."""

from dataclasses import asdict, replace
from itertools import product

import pytest
import torch

from digen_core.config.families import FAMILIES as FAMILY_ROWS
from digen_core.errors import ConfigError
from digen_core.gang.members import Gang
from digen_core.models.loading import load_trainable
from digen_core.models.policy import TRAINER_PARTS
from support.edits import write_edit_2511
from support.families import FAMILIES, KONTEXT
from support.gang_cases import (
    Case,
    exported,
    gradients,
    replay_errors_of_own_samples,
    replay_failures,
    samples,
    versions,
)
from support.gang_processes import run_gang
from support.gpu import DEVICES, require_gpus

pytestmark = pytest.mark.slow

BOUNDS = {"float64": 1e-10, "float32": 1e-5}
ON_GPUS = ("native", "cudnn", "native_flash")
"""Kernels with which tokens are dealt there, whatever is installed."""
DEALING = [family for family, row in FAMILY_ROWS.items() if row.deals_tokens]


def bound_of(case: Case) -> float:
    """Wan keeps some modules in float32, which round otherwise where fewer rows are computed.

    Z-Image and LTX-2 turn queries and keys in float32, and Sana's linear attention computes in it.
    """
    if case.dtype == "float16":
        return 5e-3
    return 1e-5 if case.family in ("wan", "z_image", "ltx2", "sana") else BOUNDS[case.dtype]


DAILY = {
    2: [
        Case("flux", lora=True, tokens=2, shard=True, packs=2),
        Case("flux", lora=False, tokens=1, shard=True, checkpointing=True, packs=2),
        Case("wan", lora=False, tokens=2, shard=True),
        Case("hunyuan_video", lora=True, tokens=2, checkpointing=True),
        Case("z_image", lora=False, tokens=2, shard=True, checkpointing=True),
    ],
    4: [
        Case("flux", lora=True, tokens=1, shard=True, num_rows=3, packs=2),
        Case("flux", lora=True, tokens=2, shard=True, dtype="float16"),  # as adapters are, too
        Case("hunyuan_video", lora=False, tokens=2, shard=True),
    ],
}
OTHERS = [
    Case("sd3", lora=False, tokens=1, shard=True),
    Case("sana", tokens=1, shard=True, checkpointing=True),
    Case("wan-a14b", lora=True, num_rows=1),
    Case("qwen_image", lora=True, tokens=2, shard=True, checkpointing=True),
    Case("qwen_image21", lora=True, tokens=2, shard=True, checkpointing=True),
    Case("qwen_image21", lora=False, tokens=2, edits=2),
    Case("z_image", lora=True, tokens=2),
    Case("wan-a14b", lora=False, tokens=2, shard=True, checkpointing=True, packs=2),
    Case("hunyuan_video", lora=False, tokens=2, shard=True, dtype="float32"),
    Case("hunyuan_video15", lora=True, tokens=2, shard=True, checkpointing=True),
    Case("hunyuan_video15", lora=False, tokens=2),
    Case("hunyuan_video15-i2v", tokens=2, edits=1),
    Case("hunyuan_video15-i2v-distilled", tokens=2, edits=1),
    Case("flux2", lora=False, tokens=2, shard=True, checkpointing=True),
    Case("ltx2", lora=False, tokens=2, shard=True, checkpointing=True),
    Case("ltx2-2.3", lora=False, tokens=2, shard=True, checkpointing=True),
    Case("ltx2-2.5", tokens=2),
    Case("flux2", tokens=2, shard=True, edits=1),
]
"""What a slice tries of a gang of 2."""


def all_cases(size: int) -> list[Case]:
    """Every family, whole or sharded, with rows dealt, tokens, and in a gang of 4 both."""
    booleans = (False, True)
    degrees = [degree for degree in (1, 2, 4) if degree <= size]
    return [
        Case(family, lora, tokens, shard, checkpointing, dtype, packs=2)
        for family, lora, tokens, shard, checkpointing, dtype in product(
            FAMILIES, booleans, degrees, booleans, booleans, BOUNDS
        )
        if FAMILY_ROWS[family].deals_tokens or tokens == 1
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
        errors = metrics.pop("replay_errors")
        assert errors == pytest.approx(expected.pop("replay_errors"), rel=bound, abs=bound), case
        assert set(errors) == {"rollout-0"}  # sampled the first; what others did is not its own
        assert metrics == pytest.approx(expected, rel=bound, abs=bound), case
        assert found.expected.num_pairs == case.packs * case.num_rows


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.families)])
def test_members_parts_add_up_to_the_gradient(tiny_families, tmp_path, size, device):
    compare(size, tmp_path, tiny_families, DAILY[size], device)


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("device", "kernel", "dtype"),
    [
        ("cpu", "native", "float32"),
        *(pytest.param("cuda", own, "float16", marks=pytest.mark.gpu) for own in ON_GPUS),
    ],
)
def test_tokens_are_dealt_with_each_kernel_of_attention(
    tiny_families, tmp_path, device, kernel, dtype
):
    """diffusers has a backward pass of its own for each, for dealt tokens alone."""
    case = Case("flux", tokens=2, dtype=dtype, attention=kernel)
    compare(2, tmp_path, tiny_families, [case], device)


def test_cpus_deal_no_tokens_with_the_flash_attention_of_torch(tiny_families):
    case = Case("flux", tokens=2, attention="native_flash")
    gang = Gang(size=2, context_parallel=2)
    with pytest.raises(ConfigError, match="is 'cpu' here; use native"):
        load_trainable(case.config(tiny_families["flux"]), TRAINER_PARTS, gang)


def test_a_replay_that_differs_on_one_member_is_an_error_on_all(tiny_families, tmp_path):
    """One that failed alone would leave the others in the pass, which NCCL gets nobody out of."""
    case = Case("flux", shard=True, num_rows=2)
    found = run_gang(2, tmp_path, replay_failures, tiny_families, case)
    assert found[0] == found[1]
    failure, ranks = found[0]
    assert "sampled them by rollout-0, log-probs differ by up to 1, more than" in failure
    assert ranks == [0, 1]


@pytest.mark.families
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_members_parts_add_up_of_other_models(tiny_families, tmp_path, case):
    compare(2, tmp_path, tiny_families, [case])


@pytest.mark.nightly
def test_members_parts_add_up_of_edits(tiny_families, tmp_path):
    editors = {
        "flux": tiny_families[KONTEXT],
        "qwen_image-edit-plus": write_edit_2511(tmp_path / "2511"),
    }
    cases = [
        Case("flux", tokens=2, shard=True, edits=1),
        Case("flux2", lora=False, tokens=2, checkpointing=True, edits=1),
        Case("flux2", num_rows=1, edits=2),
        Case("qwen_image-edit", tokens=2, shard=True, edits=1),
        Case("qwen_image-edit-plus", lora=False, tokens=2, checkpointing=True, edits=3),
        Case("qwen_image21", tokens=2, checkpointing=True, edits=1),
        Case("wan-ti2v", tokens=2, shard=True, edits=1),
        Case("wan-i2v", lora=False, tokens=2, edits=1),
        Case("wan-i2v-a14b", tokens=2, edits=1),
    ]
    compare(2, tmp_path, tiny_families | editors, cases)


@pytest.mark.families
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("size", [2, 4])
def test_members_parts_add_up_for_every_way_to_share(tiny_families, tmp_path, size, dtype, family):
    cases = [case for case in all_cases(size) if (case.family, case.dtype) == (family, dtype)]
    compare(size, tmp_path, tiny_families, cases)


@pytest.mark.families
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "lora"), [("flux", True), ("hunyuan_video", False)])
def test_compiled_blocks_that_are_sharded_and_deal_tokens(
    tiny_families, tmp_path, family, lora, device
):
    case = Case(
        family, lora, tokens=2, shard=True, checkpointing=True, dtype="float32", compile=True
    )
    compare(2, tmp_path, tiny_families, [case], device)


@pytest.mark.families
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [
        Case("flux", tokens=2, shard=True, checkpointing=True),
        Case("wan", lora=False, shard=True, checkpointing=True, num_rows=4),
        Case("flux", stages=2, checkpointing=True, num_rows=4),
    ],
    ids=["tokens", "shards", "stages"],
)
def test_compiled_blocks_of_a_gang_round_in_a_replay_as_in_samples(tiny_families, tmp_path, case):
    case = replace(case, dtype="bfloat16", compile=True)
    found = run_gang(2, tmp_path, replay_errors_of_own_samples, tiny_families, case)
    assert {"rollout-0": 0.0} in found
    assert all(errors in ({}, {"rollout-0": 0.0}) for errors in found)  # a share has no such pair


@pytest.mark.ci
@pytest.mark.parametrize(
    "families",
    [("flux", "wan", "hunyuan_video"), pytest.param(DEALING, marks=pytest.mark.families)],
)
@pytest.mark.parametrize("device", DEVICES)
def test_members_sample_what_one_device_samples(tiny_families, tmp_path, families, device):
    require_gpus(device, 2)
    cases = [
        *(Case(family, tokens=2, num_rows=2) for family in families),
        Case("sd3", shard=True, num_rows=3),
        Case("z_image", shard=True, num_rows=2),
        Case("flux", lora=False, tokens=2, shard=True, num_rows=1),
        Case("wan-ti2v", tokens=2, num_rows=2),
        Case("wan-a14b", tokens=2, num_rows=2),
        Case("wan-a14b", lora=False, shard=True, num_rows=1),
        Case("flux", tokens=2, num_rows=2, precision="float8"),
        Case("sd3", shard=True, num_rows=3, precision="float8"),
        Case("flux", lora=False, shard=True, num_rows=2, precision="float8"),
        Case("wan", lora=False, shard=True, num_rows=1),  # one of two shares has no sample
    ]
    cases = [replace(case, device=device) for case in cases]
    members = run_gang(2, tmp_path, samples, tiny_families, cases, device=device)
    for case, found in zip(cases, zip(*members, strict=True), strict=True):
        shares = {member.share: member for member in found}
        for member in found:
            assert torch.equal(member.latents, shares[member.share].latents), case
            assert torch.equal(member.logprobs, shares[member.share].logprobs), case
        latents, logprobs = found[0].expected
        for whole, parts in (
            (latents, torch.cat([shares[share].latents for share in sorted(shares)])),
            (logprobs, torch.cat([shares[share].logprobs for share in sorted(shares)], dim=1)),
        ):
            torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_sharded_weights_are_those_of_each_version(tiny_families, tmp_path, device):
    require_gpus(device, 2)
    cases = [
        Case("flux", lora=True, shard=True),
        Case("flux", lora=False, shard=True, tokens=2),
        Case("wan", lora=False, shard=True),
        Case("wan-a14b", lora=False, shard=True),
        Case("hunyuan_video", lora=True, shard=True, tokens=2),
        Case("hunyuan_video", lora=False, shard=True),
    ]
    cases = [replace(case, device=device) for case in cases]
    for member in run_gang(2, tmp_path, versions, tiny_families, cases, device=device):
        for case, found in zip(cases, member, strict=True):
            assert found.same_initial, case
            assert all(error < 1e-10 for error in found.errors), (case, found.errors)


def test_the_leader_exports_sharded_weights_alone(tiny_families, tmp_path):
    """It has all of them as masters; what it holds of the model is its rows."""
    models = ("flux", "hunyuan_video", "wan-a14b", "ltx2")
    cases = [Case(model, lora=False, shard=True) for model in models]
    leader, _ = run_gang(2, tmp_path, exported, tiny_families, cases, tmp_path / "out")
    assert leader == [True] * len(models)
