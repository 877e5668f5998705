"""What the members of a gang cannot share is refused before anything is loaded."""

import json
import shutil

import pytest

from digen_core.config.families import FAMILIES as ROWS
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.preflight.gangs import check_gangs
from digen_core.preflight.model import check_model
from support.families import FAMILIES, frames_of


@pytest.fixture
def config_of(tiny_families, monkeypatch):
    """The config of a run with gangs on a tiny model of a family: 4 heads, 6 tokens of an image."""
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)

    def config(family, degree, cluster=None, parallel=None, **model):
        sizes = {
            "height": 32,
            "width": 64,
            "num_frames": frames_of(family),
            "max_sequence_length": 16,
        }
        return RunConfig.model_validate(
            {
                "model": {"family": family, "path": tiny_families[family], **sizes, **model},
                "cluster": {"trainer_gang": degree} if cluster is None else cluster,
                "parallel": {"context_parallel": degree, **(parallel or {})},
            }
        )

    return config


@pytest.mark.parametrize("family", [name for name, row in ROWS.items() if row.deals_tokens])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_degrees_that_divide_all_are_taken(config_of, family, degree):
    check_model(config_of(family, degree))


@pytest.mark.parametrize(
    ("family", "degree", "model", "message"),
    [
        ("sd3", 2, {}, r"context_parallel is 2, but sd3 deals no tokens; use 1"),
        (
            "flux",
            8,
            {"width": 128},
            r"is 8, which does not divide the 4 attention heads of .*; what does is 1, 2, 4$",
        ),
        (
            "flux",
            4,
            {"width": 48},
            r"is 4, which does not divide the 6 tokens of samples of 32 x 48 x 1; .* is 1, 2$",
        ),
        (
            "wan",
            4,
            {"width": 48, "sizes": [[32, 48, 9]]},
            r"does not divide the 18 tokens of samples of 32 x 48 x 9; what does is 1, 2$",
        ),
        (
            "hunyuan_video",
            2,
            {"max_sequence_length": 15},
            r"does not divide model.max_sequence_length \(15\); what does is 1$",
        ),
        (
            "z_image",
            3,
            {},
            r"is 3, which does not divide the 32 tokens that z_image pads to; .* is 1, 2, 4$",
        ),
        (
            "qwen_image",
            2,
            {"attention": "math"},
            r"but model.attention is 'math'; use native$",
        ),
        (
            "flux",
            2,
            {"attention": "math"},
            r"but model.attention is 'math'; use one of native, cudnn, native_flash, flash$",
        ),
        (
            "hunyuan_video",
            2,
            {"attention": "cudnn"},
            r"but model.attention is 'cudnn'; use native$",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(config_of, family, degree, model, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check_model(config_of(family, degree, **model))
    assert "\n" not in str(refused.value)


def test_cudnn_deals_tokens_where_no_text_is_masked(config_of):
    check_model(config_of("wan", 2, attention="cudnn"))


@pytest.mark.parametrize("family", ["wan", "ltx2"])
def test_some_deal_no_text(config_of, family):
    check_model(config_of(family, 2, max_sequence_length=15))


def test_one_deals_any_number_of_tokens_but_whole_heads(config_of):
    sizes = {"width": 48, "max_sequence_length": 15}  # 24 tokens of an image
    check_model(config_of("qwen_image21", 4, **sizes))
    with pytest.raises(ConfigError, match=r"divide the 4 attention heads of .*; .* is 1, 2, 4$"):
        check_model(config_of("qwen_image21", 5, **sizes))


def test_the_degree_is_that_of_each_gang(config_of):
    """Of 4 members asked for, a gang of 6 has 2."""
    check_model(config_of("flux", 4, {"trainer_gang": 6}, width=48))
    with pytest.raises(ConfigError, match=r"context_parallel is 4 \(2 in a gang of 6\), which"):
        check_model(config_of("flux", 4, {"rollout_gang": 6}, max_sequence_length=15))
    check_model(config_of("sd3", 4, {}))  # no gang


def test_on_a_running_cluster_the_degree_is_the_configs(config_of):
    address = {"scheduler_address": "tcp://127.0.0.1:1"}
    with pytest.raises(ConfigError, match="context_parallel is 4, which does not divide the 6"):
        check_model(config_of("flux", 4, address, width=48))


def test_shards_do_not_leave_their_devices(config_of):
    offload = ("text_encoders", "transformer")
    with pytest.raises(ConfigError, match=r"shard_weights is true, but .* names the transformer"):
        check_model(config_of("flux", 1, {}, {"shard_weights": True}, offload=offload))


def test_shards_are_refused_where_no_device_is_a_gang(config_of):
    shards = {"shard_weights": True}
    with pytest.raises(ConfigError, match="shard_weights is true, but no device of the run is a"):
        check_model(config_of("flux", 1, {}, shards))
    check_model(config_of("flux", 1, {"rollout_gang": 2}, shards))
    check_model(config_of("flux", 1, {"scheduler_address": "tcp://127.0.0.1:1"}, shards))


def test_what_the_files_do_not_tell_is_left_to_the_loading(config_of, tmp_path, tiny_families):
    folder = shutil.copytree(tiny_families["flux"], tmp_path / "model")
    file = folder / "transformer/config.json"
    settings = json.loads(file.read_text())
    del settings["num_attention_heads"]
    file.write_text(json.dumps(settings))
    check_model(config_of("flux", 8, path=str(folder)))


@pytest.mark.parametrize(
    ("family", "parallel", "cluster", "message"),
    [
        ("flux", {"stages": 3}, {"trainer_gang": 4}, r"stages is 3, which does not divide a gang"),
        ("flux", {"stages": 3}, {"trainer_gang": 3, "rollout_gang": 2}, "not divide a gang of 2"),
        ("flux", {"stages": 2}, {}, "stages is 2, but no device of the run is a gang; set cluster"),
        ("flux", {"stages": 8}, {"trainer_gang": 8}, r"stages is 8, more than the 4 blocks of .*"),
        ("wan", {"stages": 3}, {"trainer_gang": 3}, r"stages is 3, more than the 2 blocks of .*"),
        (
            "flux",
            {"stages": 2, "context_parallel": 2},
            {"trainer_gang": 4},
            "goes not with parallel.context_parallel: stages deal no tokens; leave it out",
        ),
        (
            "flux",
            {"stages": 2, "shard_weights": True},
            {"trainer_gang": 4},
            "goes not with parallel.shard_weights: a stage is held whole; leave it out",
        ),
        (
            "flux",
            {"stage_blocks": [2, 2]},
            {"trainer_gang": 2},
            "stages is 1, but parallel.stage_b",
        ),
        (
            "flux",
            {"stages": 2, "stage_blocks": [4]},
            {"trainer_gang": 2},
            "a number of blocks, 1 at",
        ),
        (
            "flux",
            {"stages": 2, "stage_blocks": [4, 0]},
            {"trainer_gang": 2},
            r"stage_blocks is \[4, 0\]; it needs a number of blocks, 1 at least, for each stage",
        ),
        (
            "flux",
            {"stages": 2, "stage_blocks": [2, 3]},
            {"trainer_gang": 2},
            r"stage_blocks \[2, 3\] are 5 blocks together, but model.path .* has 4",
        ),
        (
            "flux",
            {"stages_by_size": [[2, 2], [1, 3]]},
            {"trainer_gang": 2},
            r"stages_by_size is \[\[2, 2\], \[1, 3\]\], two of which are of 2 stages; leave one",
        ),
        (
            "flux",
            {"stages_by_size": [[2, 2], [1, 1, 1]]},
            {"trainer_gang": 2},
            r"stages_by_size \[1, 1, 1\] are 3 blocks together, but model.path .* has 4",
        ),
        (
            "flux",
            {"stages_by_size": [[4, 0]]},
            {"trainer_gang": 2},
            r"stages_by_size is \[4, 0\]; it needs a number of blocks, 1 at least",
        ),
        (
            "flux",
            {"stages_by_size": [[2, 2]]},
            {},
            r"stages_by_size is \[\[2, 2\]\], but no device of the run is a gang; set cluster",
        ),
        (
            "flux",
            {"stages_by_size": [[2, 2]], "shard_weights": True},
            {"trainer_gang": 2},
            r"stages_by_size is \[\[2, 2\]\], which goes not with parallel.shard_weights",
        ),
        (
            "flux",
            {"stages_by_size": [[2, 2]], "stages": 2},
            {"trainer_gang": 2, "rollout_gang": 3},
            "stages is 2, which does not divide a gang of 3",
        ),
    ],
)
def test_stages_that_cannot_be_are_refused_in_one_line(
    config_of, family, parallel, cluster, message
):
    with pytest.raises(ConfigError, match=message) as refused:
        check_model(config_of(family, 1, cluster, parallel))
    assert "\n" not in str(refused.value)


def test_a_stage_takes_no_adapters_that_are_to_be_folded(config_of, tmp_path):
    adapters = {"style": {"path": str(tmp_path / "lora.safetensors")}}
    config = config_of("flux", 1, {"trainer_gang": 2}, {"stages": 2})
    changed = RunConfig.model_validate(
        {**config.model_dump(), "model": {**config.model.model_dump(), "adapters": adapters}}
    )
    with pytest.raises(ConfigError, match=r"goes not with model\.adapters: fold them"):
        check_gangs(changed)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_that_divide_the_gangs_are_taken(config_of, family):
    check_model(config_of(family, 1, {"trainer_gang": 4}, {"stages": 2}))
    check_model(config_of("flux", 1, {"trainer_gang": 4, "rollout_gang": 8}, {"stages": 4}))
    check_model(config_of("flux", 1, {"trainer_gang": 2}, {"stages": 2, "stage_blocks": [3, 1]}))
    address = {"scheduler_address": "tcp://127.0.0.1:1"}
    check_model(config_of(family, 1, address, {"stages": 2}))
    two = {"trainer_gang": 3, "rollout_gang": 2}
    check_model(config_of("flux", 1, two, {"stages_by_size": [[1, 3], [1, 1, 2]]}))
    check_model(config_of("flux", 1, two, {"stages_by_size": [[1, 1, 2]], "stages": 2}))


@pytest.mark.parametrize(
    ("blocks", "parallel", "message"),
    [
        ([1, 4], {}, r"to blocks \[1, 4\], but model.path .* has 4 blocks, 0 to 3$"),
        ([2], {"context_parallel": 2}, r"goes not with parallel.context_parallel \(2\); leave one"),
        (
            [2],
            {"stages": 2},
            r"but the 2 stages meet where they weigh equally; set parallel",
        ),
        (
            [1, 2],
            {"stages": 2, "stage_blocks": [2, 2]},
            r"but the 2 stages meet at \[2\]; set parallel.stage_blocks so that stages begin with",
        ),
        (
            [1],
            {"stages_by_size": [[1, 3], [2, 1, 1]]},
            r"but the 3 stages meet at \[2, 3\]; set parallel.stages_by_size so that stages begin",
        ),
    ],
)
def test_cuts_are_coded_between_blocks_where_stages_meet(config_of, blocks, parallel, message):
    cuts = [{"block": block} for block in blocks]
    with pytest.raises(ConfigError, match=message) as refused:
        check_model(config_of("flux", 1, {"trainer_gang": 2}, parallel, cuts=cuts))
    assert "\n" not in str(refused.value)


def test_coded_cuts_are_taken_where_stages_meet_and_without_stages(config_of):
    cuts, dealt = [{"block": 3}], {"stages": 2, "stage_blocks": [3, 1]}
    check_model(config_of("flux", 1, {"trainer_gang": 2}, dealt, cuts=cuts))
    check_model(config_of("flux", 1, {}, cuts=cuts))


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"stages": 3}, r"name no layer of stage 2 of 3, blocks 2 to 3; name more layers, or use"),
        ({"stages": 2, "stage_blocks": [2, 2]}, r"name no layer of stage 1 of 2, blocks 2 to 3"),
        ({"stages": 2}, None),  # of about as many bytes: one block and three
        ({"stages_by_size": [[1, 3], [1, 1, 2]]}, r"name no layer of stage 2 of 3, blocks 2 to 3"),
    ],
)
def test_each_stage_has_a_layer_for_the_lora(config_of, parallel, message):
    """FLUX.2's blocks with one stream have none of the default targets."""
    size = parallel.get("stages", 3)
    own = config_of("flux2", 1, {"trainer_gang": size}, parallel)
    if message is None:
        check_model(own)
    else:
        with pytest.raises(ConfigError, match=message):
            check_model(own)
    lora = own.train.lora.model_copy(update={"targets": ("to_q", "to_qkv_mlp_proj")})
    wide = own.model_copy(update={"train": own.train.model_copy(update={"lora": lora})})
    check_model(wide)
    check_model(own.model_copy(update={"train": own.train.model_copy(update={"lora": None})}))
