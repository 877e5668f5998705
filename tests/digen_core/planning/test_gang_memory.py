"""The memory of a gang's member, held to what members of a real gang take."""

from pathlib import Path

import pytest
import torch.distributed as dist

from digen_core.config.parallel import ParallelConfig
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.planning.fake_gang import fake_gang
from digen_core.planning.memory_count import memory_of
from support.families import family_of, frames_of
from support.gang_memory import peaks
from support.gang_processes import run_gang

COUNTS = [1, 3]


def tree_of(
    folder: str,
    family: str,
    *,
    lora: bool,
    tokens: int = 1,
    shard: bool = False,
    checkpointing: bool = False,
    stages: int = 1,
) -> dict:
    """Images of 128 x 128 pixels, videos of 5 frames; packs of 3 pairs for each share of 2."""
    return {
        "model": {
            "family": family_of(family),
            "path": folder,
            "device": "cpu",
            "height": 128,
            "width": 128,
            "num_frames": frames_of(family),
            "max_sequence_length": 24,
            "guidance_scale": 3.0,
        },
        "rollout": {"group_size": 4, "fragment_size": 4, "num_steps": 3},
        "train": {
            "lora": {"rank": 3} if lora else None,
            "pack_size": 6 // (tokens * stages) if tokens < 3 else 1,
            "gradient_checkpointing": checkpointing,
        },
        "parallel": {"context_parallel": tokens, "shard_weights": shard, "stages": stages},
    }


CASES = [
    ("flux", {"lora": True, "tokens": 2, "shard": False}),
    ("flux", {"lora": False, "tokens": 1, "shard": True}),
    ("wan", {"lora": True, "tokens": 2, "shard": True, "checkpointing": True}),
    ("wan", {"lora": False, "tokens": 2, "shard": True}),
    ("wan-a14b", {"lora": False, "tokens": 2, "shard": True}),
    ("wan-a14b", {"lora": True, "stages": 2}),
    ("sd3", {"lora": True, "tokens": 1, "shard": True, "checkpointing": True}),
    ("hunyuan_video", {"lora": False, "tokens": 2, "shard": True, "checkpointing": True}),
    ("flux", {"lora": True, "stages": 2}),
    ("sd3", {"lora": True, "stages": 2, "checkpointing": True}),
    ("hunyuan_video", {"lora": False, "stages": 2}),
    ("ltx2", {"lora": False, "tokens": 2, "shard": True}),
    ("ltx2", {"lora": False, "stages": 2}),
    ("ltx2-2.3", {"lora": False, "tokens": 2, "shard": True}),
    ("ltx2-2.3", {"lora": False, "stages": 2}),
]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_peaks_are_those_of_a_real_member(tiny_families, tmp_path):
    trees = [tree_of(tiny_families[family], family, **how) for family, how in CASES]
    members = run_gang(2, tmp_path, peaks, trees, COUNTS)
    for rank, member in enumerate(members):
        for case, tree, real in zip(CASES, trees, member, strict=True):
            check_peaks((rank, case), tree, rank, real)


def check_peaks(case, tree: dict, rank: int, real: dict) -> None:
    """Hold what is counted for a member to what it took."""
    found = memory_of(RunConfig.model_validate(tree), Path(tree["model"]["path"]), 2, rank)
    has_lora = tree["train"]["lora"] is not None
    assert found.weights == real["weights"] - (real["trained"] if has_lora else 0), case
    assert found.gradient_sum == real["trained"], case
    for line, ranges in ((found.step, real["steps"]), (found.pack, real["packs"])):
        for count, (least, most) in zip(COUNTS, ranges, strict=True):
            assert least <= 1.1 * line(count) + real["buffer"], (case, count)
            assert most >= 0.9 * line(count), (case, count)


@pytest.mark.ci
def test_a_member_holds_and_computes_its_part(tiny_families):
    folder = tiny_families["flux"]

    def memory(size: int, **how):
        config = RunConfig.model_validate(tree_of(folder, "flux", **how))
        return memory_of(config, Path(folder), size)

    alone = memory(1, lora=False, tokens=4, shard=True)
    sharded = memory(4, lora=False, tokens=1, shard=True)
    dealt = memory(4, lora=False, tokens=4, shard=False)
    assert sharded.weights == pytest.approx(alone.weights / 4, rel=0.05)
    assert sharded.gradient_sum == pytest.approx(alone.gradient_sum / 4, rel=0.05)
    assert (sharded.num_shares, dealt.num_shares) == (4, 1)
    assert dealt.weights == alone.weights
    assert dealt.step(1) < 0.5 * alone.step(1)
    assert sharded.decode == dealt.decode == alone.decode
    assert (sharded.state, sharded.versions) == (alone.state, alone.versions)
    assert dealt.versions == 5 * alone.versions  # each member's, and the rows that they serve


@pytest.mark.ci
def test_each_stage_is_counted_for_itself(tiny_families):
    """Of three; the leader alone embeds and decodes."""

    def stages(*blocks: int):
        tree = tree_of(tiny_families["flux"], "flux", lora=False, stages=3)
        tree["parallel"]["stage_blocks"] = blocks
        config, folder = RunConfig.model_validate(tree), Path(tree["model"]["path"])
        assert memory_of(config, folder, 3) == memory_of(config, folder, 3, 0)
        return [memory_of(config, folder, 3, rank) for rank in range(3)]

    first, middle, last = stages(1, 1, 2)
    assert min(first.text_encoders, first.vae, first.decode(1)) > 0
    for follower in (middle, last):
        assert (follower.text_encoders, follower.vae, follower.decode(1)) == (0, 0, 0)
        assert min(follower.step(1), follower.pack(1)) > 0
    longer, shorter = stages(1, 2, 1)[1:]
    assert longer.weights - middle.weights == last.weights - shorter.weights > 0, "a block"
    assert longer.gradient_sum - middle.gradient_sum == last.gradient_sum - shorter.gradient_sum > 0
    assert longer.pack(1) > middle.pack(1)


def test_a_gang_that_cannot_deal_the_tokens_is_refused(tiny_families):
    config = RunConfig.model_validate(
        tree_of(tiny_families["flux"], "flux", lora=True, tokens=64, shard=False)
    )
    with pytest.raises(UserError, match="which does not divide"):
        memory_of(config, Path(tiny_families["flux"]), 64)


def test_a_fake_gang_leaves_a_real_one_as_it_was(tmp_path):
    config = ParallelConfig(context_parallel=2)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for _ in range(2):
            with fake_gang(config, 4) as gang:
                assert (gang.size, gang.num_shares, dist.get_world_size()) == (4, 2, 4)
            assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
