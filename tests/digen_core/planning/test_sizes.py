"""The size of a recipe: closed forms, the same counted with numbers, published parameters."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from deployments.cli import run
from deployments.shipped import RECIPES, recipe_files
from deployments.views.size import as_markdown, print_rows, quantities, size
from digen_core.config.families import FAMILIES
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.config.size import tokens_of
from digen_core.config.train import LoraConfig
from digen_core.models import equal_blocks
from digen_core.models.families import adapter_of
from digen_core.models.trainable import make_trainable, trainable_parameters
from digen_core.planning import sizes as counting
from digen_core.planning.job import group_costs, typical_workload, workload_of
from digen_core.planning.sizes import (
    Sizes,
    cost_of_default,
    costs_of_sizes,
    sent_of,
    sizes_of,
    step_flops,
)
from digen_core.transport.arrays import to_array, to_arrays
from support.edits import condition_of
from support.families import (
    EDITED,
    EDITORS,
    GUIDED,
    MODELS,
    family_of,
    frames_of,
    load_tiny,
    sliced,
)
from support.paths import ROOT
from support.planning import TRAINED_ON_MORE_BLOCKS, with_more_blocks

pytestmark = pytest.mark.slow

SETTINGS = ROOT / "deployments/model_configs"

PUBLISHED = {  # billions of parameters of the transformers on the hub
    "FLUX.1-dev": ("flux", 11.901),
    "FLUX.1-Kontext-dev": ("flux", 11.901),
    "FLUX.2-dev": ("flux2", 32.223),
    "FLUX.2-klein-4B": ("flux2", 3.876),
    "FLUX.2-klein-9B": ("flux2", 9.079),
    "FLUX.2-klein-base-4B": ("flux2", 3.876),
    "FLUX.2-klein-base-9B": ("flux2", 9.079),
    "stable-diffusion-3.5-medium": ("sd3", 2.243),
    "Qwen-Image": ("qwen_image", 20.430),
    "Qwen-Image-Edit": ("qwen_image-edit", 20.430),
    "Qwen-Image-Edit-2509": ("qwen_image-edit-plus", 20.430),
    "Qwen-Image-Edit-2511": ("qwen_image-edit-plus", 20.430),
    "Qwen-Image-2.1": ("qwen_image21", 7.115),
    "Sana_1600M_1024px_diffusers": ("sana", 1.604),
    "Z-Image": ("z_image", 6.155),
    "Z-Image-Turbo": ("z_image", 6.155),
    "Wan2.1-T2V-1.3B-Diffusers": ("wan", 1.419),
    "Wan2.1-T2V-14B-Diffusers": ("wan", 14.288),
    "Wan2.1-I2V-14B-480P-Diffusers": ("wan-i2v", 16.395),
    "Wan2.1-FLF2V-14B-720P-diffusers": ("wan-i2v", 16.396),
    "Wan2.2-T2V-A14B-Diffusers": ("wan", 28.577),
    "Wan2.2-I2V-A14B-Diffusers": ("wan-i2v-a14b", 28.578),
    "Wan2.2-TI2V-5B-Diffusers": ("wan", 5.000),
    "HunyuanVideo": ("hunyuan_video", 12.821),
    "LTX-2": ("ltx2", 18.876),  # of audio 5.8
    "LTX-2.3-Diffusers": ("ltx2-2.3", 18.989),  # with the connectors the 22 of its name
    "LTX-2.5-Diffusers": ("ltx2-2.5", 18.988),
    "HunyuanVideo-1.5-Diffusers-480p_t2v": ("hunyuan_video15", 8.327),
    "HunyuanVideo-1.5-Diffusers-480p_i2v": ("hunyuan_video15-i2v", 8.327),
    "HunyuanVideo-1.5-Diffusers-480p_i2v_step_distilled": ("hunyuan_video15-i2v", 8.331),
}


@pytest.fixture(params=MODELS)
def family(request) -> str:
    return request.param


def config_of(family: str, *, train=None, model=None, algorithm=None, rollout=None) -> RunConfig:
    """Images of 32 x 48 pixels, videos of 5 frames, 3 steps of which 2 are noisy."""
    sizes = {"height": 32, "width": 48, "num_frames": frames_of(family), "max_sequence_length": 24}
    return RunConfig.model_validate(
        {
            "model": {"family": family_of(family), "guidance_scale": 3.0, **sizes, **(model or {})},
            "rollout": {"num_steps": 3, **(rollout or {})},
            "train": {"lora": {"rank": 3}, **(train or {})},
            "prompts": EDITED if family in EDITORS else {},
            "algorithm": algorithm or {},
        }
    )


@pytest.mark.ci
@pytest.mark.parametrize(("family", "train"), TRAINED_ON_MORE_BLOCKS, ids=str)
def test_of_equal_blocks_a_few_are_counted(family, train, tiny_families, tmp_path, monkeypatch):
    folder = with_more_blocks(Path(tiny_families[family]), tmp_path, family, 5)
    config = config_of(family, train=train, algorithm={"kl_coefficient": 0.1})
    calls, flops = [], counting._flops

    def counted(work):
        calls.append(flops(work))
        return calls[-1]

    monkeypatch.setattr(counting, "_flops", counted)
    found, num_passes = sizes_of(config, folder), len(calls)
    monkeypatch.setattr(equal_blocks, "FEWEST", 5)
    assert sizes_of(config, folder) == found
    assert num_passes > len(calls) - num_passes == 3, "none was left out"


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", sliced(MODELS))
def test_a_size_costs_its_share_of_the_arithmetic(family, tiny_families):
    """Of four sizes three are counted; the fourth is on the polynomial of degree 2 through them."""
    frames = frames_of(family)
    sizes = [[32, 32, frames], [64, 32, frames], [64, 64, frames], [96, 96, frames]]
    one: dict = {}
    if family == "z_image":  # whose tokens are padded to a multiple of 32
        sizes = [[64, 128, 1], [128, 128, 1], [128, 256, 1], [256, 256, 1]]
        one = {"height": 128, "width": 192}
    path = tiny_families[family]
    model = config_of(family, model={"path": path, "sizes": sizes, **one}).model
    found = costs_of_sizes(model)
    policy = adapter_of(family_of(family)).without_weights(model, Path(path))
    flops = {size: float(step_flops(policy.at_size(size))) for size in found}
    mean = sum(flops[size] for size in model.sizes) / 4
    assert found == {size: pytest.approx(own / mean, rel=1e-9) for size, own in flops.items()}
    assert model.size in found
    tokens = [tokens_of(size) for size in model.sizes]
    slopes = np.diff([found[size] for size in model.sizes]) / np.diff(tokens)
    if family == "sana":
        assert np.allclose(slopes, slopes[0]), "attention is linear"
    else:
        assert (np.diff(slopes) > 0).all(), "attention grows with the square"
    assert sum(found[size] for size in model.sizes) == pytest.approx(4.0)
    assert cost_of_default(model) == found[model.size]


def test_sizes_cost_their_share_of_tokens_where_settings_are_not_here():
    """64 x 64 pixels are 16 tokens, 32 x 64 are 8: in their mean 4/3 and 2/3."""
    sizes = [[64, 64, 1], [32, 64, 1]]
    model = config_of("flux", model={"path": "nobody/has-this", "sizes": sizes}).model
    found = costs_of_sizes(model)
    assert found[64, 64, 1] == pytest.approx(4 / 3)
    assert found[32, 64, 1] == pytest.approx(2 / 3)
    assert costs_of_sizes(config_of("flux").model) == {}
    assert cost_of_default(config_of("flux").model) == 1.0


def test_groups_cost_what_their_sizes_do():
    sizes = [[64, 64, 1], [32, 64, 1], [64, 64, 1]]
    config = config_of(
        "flux",
        model={"path": "nobody/has-this", "sizes": sizes},
        rollout={"prompts_per_iteration": 2, "refill": 1},
    )
    large, small = 1.2, 0.6  # of a mean of 40 / 3 tokens
    assert group_costs(config, 0) == pytest.approx((large, small, large, small))
    assert group_costs(config, 1) == pytest.approx((large, large, large, large))
    assert workload_of(config).group_costs == pytest.approx((large, small))
    assert group_costs(config_of("flux"), 0) == ()


@pytest.mark.parametrize("count", range(1, 9))
def test_a_typical_iteration_takes_what_iterations_of_all_sizes_take_in_the_mean(count):
    """The first iteration has the smallest sizes alone where it has few groups."""
    sides = (32, 32, 48, 64)
    model = {"path": "nobody/has-this", "sizes": [[side, 64, 1] for side in sides]}
    config = config_of("flux", model=model, rollout={"prompts_per_iteration": count})
    every = costs_of_sizes(config.model).values()
    found = typical_workload(config).group_costs
    assert sum(found) == pytest.approx(count if found else 0.0)
    assert len({*found}) == {1: 0, 2: 2}.get(count, 3)
    if count % 4 == 0:
        assert found == pytest.approx(count // 4 * [config_cost(config, side) for side in sides])
    if count > 2:
        assert max(found) < 1.2 * max(every)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("side", [32, 64, 128])
def test_samples_of_several_sizes_cross_links_as_those_of_the_mean_size(tiny_families, side):
    """Whatever size evaluations have: 32 x 32 and 64 x 64 pixels are 2.5 times the smaller one."""
    folder = Path(tiny_families["flux"])

    def crossing(side: int, *sides: int) -> float:
        own = {"height": side, "width": side, "sizes": [[n, n, 1] for n in sides]}
        config = config_of("flux", model=own)
        return sent_of(config, sizes_of(config, folder)).transition - 4  # of the log-prob

    assert crossing(side, 32, 64) == pytest.approx(2.5 * crossing(32))


def test_a_sample_is_one_of_the_mean_of_sizes_whatever_evaluations_have(tiny_families, capsys):
    job = str(ROOT / "deployments/configs/shapes.toml")
    settings = ["--model.path", tiny_families["flux"], "--rollout.storage", "float16"]

    def found(side: int, *more: str) -> dict[str, int]:
        sides = ["--model.height", str(side), "--model.width", str(side)]
        assert run(["size", job, *settings, *sides, *more, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        return {key: own for key, own in row.items() if key != "name"}

    trained = found(32, "--model.sizes", "[[64, 64, 1]]")
    assert trained == pytest.approx(found(64), rel=0.05)
    assert trained["trajectory_bytes"] == found(64)["trajectory_bytes"]


def config_cost(config, side: int) -> float:
    return costs_of_sizes(config.model)[side, 64, 1]


def test_a_group_costs_what_its_images_make_it_cost(tiny_families):
    """Four numbers of images on a parabola through three of them; the most cost 1."""
    model = {"path": tiny_families["flux2"], "source_image": True, "max_source_images": 4}
    tree = config_of("flux2", model={"path": model["path"]}).model_dump()
    tree |= {"model": tree["model"] | model, "prompts": EDITED}
    tree["rollout"] |= {"prompts_per_iteration": 4}
    config = RunConfig.model_validate(tree)
    found = group_costs(config, 0, (1, 2, 3, 4))
    folder = Path(tiny_families["flux2"])
    flops = [
        step_flops(adapter_of("flux2").without_weights(config.model.with_images(n), folder))
        for n in (1, 2, 3, 4)
    ]
    assert found == pytest.approx([own / flops[-1] for own in flops], rel=1e-6)
    assert found[0] < 0.7
    assert group_costs(config, 0) == ()  # a plan knows no prompts: each has the most
    assert cost_of_default(config.model) == 1 > cost_of_default(config.model, 2) == found[1]
    elsewhere = config.model_copy(update={"model": config.model.model_copy(update={"path": "x"})})
    assert group_costs(elsewhere, 0, (1, 4, 4, 4)) == pytest.approx((0.4, 1, 1, 1))


def test_the_usual_frames_are_those_of_published_models():
    videos = {name for name, (own, _) in PUBLISHED.items() if FAMILIES[family_of(own)].makes_videos}
    assert videos
    for name in videos:
        family = FAMILIES[family_of(PUBLISHED[name][0])]
        vae = json.loads((SETTINGS / name / "vae/config.json").read_text())
        assert family.frames(vae) == family.usual_frames, name


@pytest.mark.ci
def test_the_published_settings_give_the_published_parameters():
    assert {folder.name for folder in SETTINGS.iterdir()} == set(PUBLISHED)
    for name, (family, billions) in PUBLISHED.items():
        frames = 9 if family_of(family) == "ltx2" else frames_of(family)
        images = 1 + ("FLF2V" in name)
        shown = {"width": 64, "num_frames": frames, "max_source_images": images}
        shown |= {"sigmas": (1.0, 0.8, 0.5)} if "step_distilled" in name else {}
        config = config_of(family, model=shown).model
        policy = adapter_of(family_of(family)).without_weights(config, SETTINGS / name)
        count = sum(parameter.numel() for parameter in policy.transformer.parameters())
        assert count / 1e9 == pytest.approx(billions, abs=5e-4), name
        assert all(parameter.is_meta for parameter in policy.transformer.parameters())


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", [*MODELS, *EDITORS])
def test_blank_conditions_are_like_real_ones(tiny_families, family):
    config = config_of(family).model
    blank = adapter_of(family_of(family)).without_weights(config, Path(tiny_families[family]))
    policy = load_tiny(tiny_families[family], family)
    texts = ["a red circle", "a blue square"]
    real, like = condition_of(policy, texts), blank.blank_condition(2)
    assert blank.latent_shape == policy.latent_shape
    assert like.keys() == real.keys()
    for name, value in real.items():
        assert (like[name].shape, like[name].dtype) == (value.shape, value.dtype), name


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", sliced((*MODELS, *EDITORS)))
def test_sizes_are_those_of_a_real_model(tiny_families, family):
    """Arithmetic and bytes are counted again with numbers, on the CPU."""
    config = config_of(family)
    found = sizes_of(config, Path(tiny_families[family]))
    policy = load_tiny(tiny_families[family], family)
    assert found.parameters == sum(p.numel() for p in policy.transformer.parameters())
    assert found.weight_bytes == 4 * found.parameters
    make_trainable(policy, config.train.lora)
    trained = trainable_parameters(policy).values()
    assert found.trained_parameters == sum(p.numel() for p in trained)
    assert found.push_bytes == sum(to_array(p).nbytes for p in trained)
    x, condition = torch.randn(1, *policy.latent_shape), condition_of(policy, ["a red circle"])
    with sdpa_kernel(SDPBackend.MATH):  # torch does not count the CPU's own attention kernel
        with FlopCounterMode(display=False) as step, torch.no_grad():
            policy.velocity(x, torch.full([1], 0.5), condition)
        with FlopCounterMode(display=False) as pair:
            policy.velocity(x, torch.full([1], 0.5), condition).sum().backward()
        with FlopCounterMode(display=False) as decode:
            policy.decode(x)
    assert found.step_flops == step.get_total_flops() > 0
    assert found.pair_flops == pair.get_total_flops() > 0
    assert found.decode_flops == decode.get_total_flops() > 0
    # 4 latents and 2 log-probs
    assert found.trajectory_bytes == 4 * to_array(x).nbytes + 2 * 4
    assert found.embedding_bytes == sum(value.nbytes for value in to_arrays(condition).values())


@pytest.mark.ci
def test_samples_from_files_count_as_decoded_in_place_of_denoised(tiny_families):
    """Beside that the margins' two velocities at each of K trained levels, of T steps."""
    folder, changes = Path(tiny_families["flux"]), {"num_steps": 4, "group_size": 2}

    def counted(algorithm, **prompts):
        config = config_of("flux", algorithm=algorithm, rollout=changes)
        own = config.prompts.model_copy(update=prompts)
        return sizes_of(config.model_copy(update={"prompts": own}), folder)

    files = {"sample_columns": ("a", "b")}
    nft, margins = {"type": "diffusion_nft"}, {"type": "dgpo", "num_levels": 2}
    generated, found, asked = counted(nft), counted(nft, **files), counted(margins, **files)
    assert found.step_flops == round(found.decode_flops / 4)
    assert asked.step_flops == round(generated.step_flops * 2 * 2 / 4 + found.decode_flops / 4)
    assert asked.decode_flops == found.decode_flops == generated.decode_flops


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", sliced((*GUIDED, "flux")))
def test_guidance_counts_double(tiny_families, family):
    folder = Path(tiny_families[family])
    guided = sizes_of(config_of(family), folder)
    alone = sizes_of(config_of(family, model={"guidance_scale": 0.0}), folder)
    factor = 2 if family in GUIDED else 1
    few = 0.01 * (family == "qwen_image21")  # a row for the texts of a batch, guided or not
    assert guided.step_flops == pytest.approx(factor * alone.step_flops, rel=few, abs=0)
    assert guided.pair_flops == pytest.approx(factor * alone.pair_flops, rel=few, abs=0)
    assert guided.embedding_bytes == factor * alone.embedding_bytes
    assert guided.decode_flops == alone.decode_flops


def test_what_is_not_decoded_costs_no_decoding(tiny_families):
    folder = Path(tiny_families["flux"])
    decoded = config_of("flux")
    tree, of_latents = decoded.model_dump(), {"m:f": {"takes": "latents"}}
    alone = RunConfig.model_validate(tree | {"rewards": of_latents})
    beside = RunConfig.model_validate(tree | {"rewards": {**of_latents, "m:g": 1.0}})
    expected = sizes_of(decoded, folder)
    assert expected.decode_flops > 0
    assert sizes_of(alone, folder) == replace(expected, decode_flops=0)
    assert sizes_of(beside, folder) == expected


@pytest.mark.ci
def test_what_a_pair_costs_in_forward_passes(tiny_families):
    family, folder = "flux", Path(tiny_families["flux"])
    forward = sizes_of(config_of(family), folder).step_flops

    def passes(lora=None, **settings) -> float:
        train = {"lora": lora, "gradient_checkpointing": settings.pop("again", False)}
        return sizes_of(config_of(family, train=train, **settings), folder).pair_flops / forward

    everything = passes()
    assert 2.8 < everything <= 3  # of every product one for the input and one for the weight
    adapters = passes({"rank": 3})
    assert 1.7 < adapters < everything  # of frozen weights for the input only
    again = passes(again=True)
    assert everything + 0.8 < again <= everything + 1
    with_reference = passes({"rank": 3}, algorithm={"kl_coefficient": 0.1})
    assert with_reference == pytest.approx(adapters + 1, abs=0.1)  # whose adapters are off


def test_who_generates_may_ask_the_reference_policy(tiny_families):
    """Of 4 steps 2 are trained: half a velocity more of a step, one less of a pair."""
    folder = Path(tiny_families["flux"])
    config = config_of(
        "flux",
        algorithm={"kl_coefficient": 0.1, "trained_fraction": 0.5},
        rollout={"num_steps": 4},
    )
    asked, given = (sizes_of(config.asking(who), folder) for who in ("training", "generation"))
    assert given.step_flops == round(1.5 * asked.step_flops)
    assert given.pair_flops == pytest.approx(asked.pair_flops - asked.step_flops, rel=0.01)
    numbers = given.latent_bytes // 4
    assert asked.velocity_bytes == given.velocity_bytes == 4 * numbers
    more = given.trajectory_bytes - asked.trajectory_bytes
    assert more == 2 * 4 * numbers
    sent = [sent_of(config.asking(who), asked).transition for who in ("training", "generation")]
    assert sent[1] - sent[0] == 4 * numbers  # of each trained step


@pytest.fixture(scope="module")
def sd3_recipe() -> Sizes:
    """SD3.5 Medium at 512 x 512 pixels without guidance."""
    return size(load_config(RECIPES / "flow_grpo_sd3_fast_nocfg.toml"))


def test_stable_diffusion_by_hand(sd3_recipe):
    """Tokens x parameters of the blocks, and attention."""
    width, image, text = 1536, (512 // 16) ** 2, 77 + 128
    linear = 24 * (image + text) * (4 + 8) * width**2  # q, k, v, out and a feed-forward of 4 x 2
    linear += 13 * image * 4 * width**2  # a second attention of the image in 13 blocks
    linear -= text * (1 + 8) * width**2  # the last block has no text output
    attention = 24 * 2 * (image + text) ** 2 * width + 13 * 2 * image**2 * width
    by_hand = 2 * (linear + attention)  # two FLOPs a product
    assert sd3_recipe.step_flops == pytest.approx(by_hand, rel=0.03)


def test_bytes_by_hand(tiny_families):
    half = config_of("sd3", model={"dtype": "bfloat16"}, train={"lora": LoraConfig(rank=6)})
    found = sizes_of(half, Path(tiny_families["sd3"]))
    full = sizes_of(config_of("sd3", train={"lora": None}), Path(tiny_families["sd3"]))
    assert found.weight_bytes == 2 * found.parameters
    assert full.push_bytes == full.weight_bytes == 4 * found.parameters
    assert full.trained_parameters == full.parameters
    whole = config_of("sd3", model={"dtype": "bfloat16"}, train={"lora": None})
    assert sizes_of(whole, Path(tiny_families["sd3"])).push_bytes == 2 * found.parameters
    once = sizes_of(config_of("sd3"), Path(tiny_families["sd3"]))
    assert found.push_bytes == once.push_bytes  # twice the rank, half the bytes
    # latents [4, 4, 6]; 77 + 24 tokens of width 64, pooled 64; two prompts
    assert found.trajectory_bytes == 4 * (4 * 96 + 2)
    rounded = config_of("sd3", rollout={"storage": "float16"})
    assert sizes_of(rounded, Path(tiny_families["sd3"])).trajectory_bytes == 2 * 4 * 96 + 4 * 2
    lagging = config_of("sd3", algorithm={"type": "diffusion_nft", "old_policy_decay": "ramp"})
    assert sizes_of(lagging, Path(tiny_families["sd3"])).push_bytes == 2 * once.push_bytes
    assert found.embedding_bytes == 2 * 4 * (101 * 64 + 64)


def test_size_prints_what_was_counted(tiny_families, capsys):
    job = str(ROOT / "deployments/configs/shapes.toml")
    arguments = ["size", job, "--model.path", tiny_families["flux"], "--train.lora.rank", "8"]
    assert run([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    config = load_config(job, {"model.path": tiny_families["flux"], "train.lora.rank": 8})
    assert row == {"name": "shapes"} | asdict(sizes_of(config, Path(tiny_families["flux"])))
    print_rows({"shapes": quantities(sizes_of(config, Path(tiny_families["flux"])))})
    assert f"{row['trained_parameters'] / 1e6:.3g}" in capsys.readouterr().out
    assert run([*arguments, "--markdown"]) == 0
    heading, _, cells = capsys.readouterr().out.splitlines()
    assert heading.count("|") == cells.count("|")
    assert cells.startswith("| shapes | ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.path", "a/b"], "model.path a/b is no folder here, and the settings that digen"),
        (["--model.path", "docs"], "model.path docs: "),
        (
            ["--train.lora.targets", '["nowhere"]'],
            "names 'nowhere', but no linear layer of the transf",
        ),
        (["--model.width", "36"], "needs multiples of 8"),
    ],
)
def test_a_model_that_cannot_be_sized_is_one_line(arguments, message, capsys):
    root = ROOT
    job = str(root / "deployments/configs/shapes.toml")
    arguments = [a.replace("docs", str(root / "docs")) for a in arguments]
    assert run(["size", job, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message.replace("docs", str(root / "docs")) in err


@pytest.mark.ci
def test_the_page_shows_every_recipe(sd3_recipe):
    """docs/sizes.md is what `digen size --markdown` prints."""
    lines = (ROOT / "docs/sizes.md").read_text().partition("## Memory")[0].splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    # one whose reference policy alone is guided, too
    guided = "dgpo_sd3_ocr"
    of_guided = quantities(size(load_config(RECIPES / f"{guided}.toml")))
    found = {"flow_grpo_sd3_fast_nocfg": quantities(sd3_recipe), guided: of_guided}
    written = as_markdown(found).splitlines()
    assert rows[:2] == written[:2]
    assert set(written[2:]) <= set(rows)
    assert [row.split(" | ")[0][2:] for row in rows[2:]] == [path.stem for path in recipe_files()]
