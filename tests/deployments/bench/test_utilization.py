"""Models of random weights compute what loaded ones do; their FLOPs, and shares of a peak."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from deployments.bench.utilization import Row, cut_settings, noise_condition, print_rows, rows_of
from deployments.cli import run
from digen_core.config.run import RunConfig
from digen_core.models.families import adapter_of
from digen_core.models.loading import build_trainable
from digen_core.planning.model_settings import MODEL_CONFIGS
from digen_core.planning.sizes import Sizes, sizes_of
from support.families import MODELS, OF_KIND, family_of, frames_of, load_tiny, sliced
from support.paths import ROOT
from tasks.measure import work_seconds

pytestmark = pytest.mark.slow

JOB = str(ROOT / "deployments/configs/shapes.toml")
COMMAND = ["bench", "utilization", JOB, "--model.device", "cpu", "--train.pack-size", "2"]
COMMAND += ["--rollout.group-size", "4", "--rollout.fragment-size", "4", "--model.path"]
TRAINED = {  # each with another way to train
    "flux": {"algorithm": {"kl_coefficient": 0.1}},
    "sd3": {"algorithm": {"type": "diffusion_nft", "old_policy_decay": "ramp"}},
    "qwen_image": {"train": {"lora": {"rank": 3}, "gradient_checkpointing": True}},
    "qwen_image21": {"train": {"lora": {"rank": 3}, "gradient_checkpointing": True}},
    "z_image": {"algorithm": {"kl_coefficient": 0.1}, "train": {"gradient_checkpointing": True}},
    "sana": {"algorithm": {"kl_coefficient": 0.1}, "train": {"gradient_checkpointing": True}},
    "wan": {"train": {"lora": None}},
    "flux2": {"train": {"lora": {"rank": 3, "targets": ["to_q", "to_qkv_mlp_proj"]}}},
    "hunyuan_video15": {"train": {"lora": {"rank": 3}, "gradient_checkpointing": True}},
    "hunyuan_video": {"algorithm": {"type": "dance_grpo"}, "rollout": {"transition": "dance"}},
    "ltx2": {"train": {"lora": None}, "algorithm": {"kl_coefficient": 0.1}},
}
BLOCKS = {  # a quarter of the published ones
    "FLUX.1-dev": {"num_layers": 5, "num_single_layers": 10},  # of 19 and 38
    "FLUX.2-dev": {"num_layers": 2, "num_single_layers": 12},  # of 8 and 48
    "FLUX.2-klein-base-4B": {"num_layers": 1, "num_single_layers": 5},  # of 5 and 20
    "HunyuanVideo": {"num_layers": 5, "num_single_layers": 10},  # of 20 and 40
    "LTX-2": {"num_layers": 12},
    "LTX-2.3-Diffusers": {"num_layers": 12},
    "HunyuanVideo-1.5-Diffusers-480p_t2v": {"num_layers": 14},  # of 54
    "Qwen-Image": {"num_layers": 15},
    "Qwen-Image-2.1": {"num_layers": 8},
    "Sana_1600M_1024px_diffusers": {"num_layers": 5},  # of 20
    "Z-Image-Turbo": {"n_layers": 8},  # of 30
    "Wan2.1-T2V-1.3B-Diffusers": {"num_layers": 8},  # of 30
    "Wan2.1-T2V-14B-Diffusers": {"num_layers": 10},
    "Wan2.2-T2V-A14B-Diffusers": {"num_layers": 10},
    # 3 of 13 blocks with a second attention, and 3 of 11 others
    "stable-diffusion-3.5-medium": {"num_layers": 6, "dual_attention_layers": [0, 1, 2]},
}


@pytest.fixture(params=MODELS)
def family(request) -> str:
    return request.param


def config_of(family: str, dtype: str = "float32", **settings) -> RunConfig:
    """Images of 32 x 48 pixels, videos of 5 frames, 3 steps; on the CPU."""
    sizes = {"height": 32, "width": 48, "num_frames": frames_of(family), "max_sequence_length": 24}
    model = {"family": family_of(family), "guidance_scale": 3.0, "dtype": dtype, "device": "cpu"}
    model |= sizes | OF_KIND.get(family, {})
    settings["rollout"] = {"num_steps": 3, **settings.get("rollout", {})}
    return RunConfig.model_validate({"model": model, **settings})


def settings_in(folder: Path) -> dict:
    return json.loads((folder / "transformer/config.json").read_text())


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", sliced(MODELS))
def test_what_is_timed_is_what_is_counted(tiny_families, family, tmp_path):
    config = config_of(family, **TRAINED[family_of(family)])
    cut_settings(Path(tiny_families[family]), tmp_path, 0.5)
    sizes, policy = sizes_of(config, tmp_path), build_trainable(config, tmp_path)
    condition = noise_condition(policy)
    velocity = policy.velocity(
        torch.randn(2, *policy.latent_shape), torch.ones(2), condition_of(2, condition)
    )
    assert velocity.isfinite().all()
    assert float(velocity.detach().std()) > 1e-3
    for work, items, flops in [("step", 3, sizes.step_flops), ("pack", 2, sizes.pair_flops)]:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            work_seconds(policy, config, condition, [(work, items)], rounds=0)  # warms up only
        few = 0.01 * (family == "qwen_image21")  # a row for the texts of a batch, however large
        assert flops > 0
        assert counter.get_total_flops() == pytest.approx(items * flops, rel=few, abs=0)
    found = work_seconds(policy, config, condition, [("step", 3), ("pack", 1)], rounds=2)
    assert [len(seconds) for seconds in found.values()] == [2, 2]
    assert all(each > 0 for seconds in found.values() for each in seconds)


@pytest.mark.parametrize("guidance", [(3.0, 1.0), (1.0, 3.0)])
def test_what_is_timed_has_guidance_where_some_steps_have_none(tiny_families, guidance):
    """As what is counted; neither the noise level of the step nor that of the pairs has it."""
    high, low = guidance
    level = 0.7 if low == 1 else 0.4
    config = config_of("sd3")
    guided = {"guidance_scale": high, "guidance_schedule": ((level, low),)}
    config = config.model_copy(update={"model": config.model.model_copy(update=guided)})
    folder = Path(tiny_families["sd3"])
    sizes, policy = sizes_of(config, folder), build_trainable(config, folder)
    for work, flops in [("step", sizes.step_flops), ("pack", sizes.pair_flops)]:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            work_seconds(policy, config, noise_condition(policy), [(work, 2)], rounds=0)
        assert counter.get_total_flops() == 2 * flops


def condition_of(count, condition):
    return {name: value.expand(count, *value.shape[1:]) for name, value in condition.items()}


@pytest.mark.ci_but_one
def test_a_model_of_random_weights_is_like_a_loaded_one(tiny_families, family):
    """With the same weights it has the same velocity: all but the weights is as loaded."""
    config = config_of(family, "bfloat16").model
    built = adapter_of(family_of(family)).with_random_weights(config, Path(tiny_families[family]))
    loaded = load_tiny(tiny_families[family], family, "bfloat16")
    dtypes = {name: weight.dtype for name, weight in built.transformer.named_parameters()}
    assert dtypes == {name: weight.dtype for name, weight in loaded.transformer.named_parameters()}
    assert torch.get_default_dtype() == torch.float32
    x, sigma = torch.randn(2, *built.latent_shape), torch.tensor([0.3, 0.9])
    condition = condition_of(2, noise_condition(built))
    with torch.no_grad():
        before = built.velocity(x, sigma, condition)
        built.transformer.load_state_dict(loaded.transformer.state_dict())
        after, expected = (policy.velocity(x, sigma, condition) for policy in (built, loaded))
    assert not torch.equal(before, after)
    assert torch.equal(after, expected)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_share_of_the_blocks_of_each_kind(name, tmp_path):
    for share, folder in {0.25: "quarter", 0.001: "least", 1.0: "all"}.items():
        (tmp_path / folder).mkdir()
        cut_settings(MODEL_CONFIGS / name, tmp_path / folder, share)
    published = settings_in(MODEL_CONFIGS / name)
    assert settings_in(tmp_path / "all") == published
    assert settings_in(tmp_path / "quarter") == published | BLOCKS[name]
    least = {"num_layers": 2, "dual_attention_layers": [0]}
    if "dual_attention_layers" not in published:
        least = {key: 1 for key in BLOCKS[name]}
    assert settings_in(tmp_path / "least") == published | least
    if (second := tmp_path / "quarter/transformer_2/config.json").exists():
        assert json.loads(second.read_text()) == published | BLOCKS[name]
        assert json.loads((tmp_path / "quarter/model_index.json").read_text())["boundary_ratio"]


def test_the_command_prints_a_table(tiny_families, capsys):
    settings = ["--blocks", "0.5", "--rounds", "1", "--peak-tflops", "0.5"]
    assert run([*COMMAND, tiny_families["flux"], *settings]) == 0
    first, _, heading, *rows, last = capsys.readouterr().out.splitlines()
    assert "with 0.5 of the blocks, " in first
    assert first.endswith("random parameters, 32 x 32 pixels, float32 on cpu")
    assert heading.split() == ["work", "items", "ms", "TFLOP", "TFLOP/s", "of", "the", "peak"]
    assert [row.split()[-5] for row in rows] == ["4", "1", "2"]  # a fragment, and the packs
    assert all(float(row.split()[-4]) > 0 for row in rows)
    assert "tflops = 0.5: mfu_denoise = 0." in last


def test_a_size_that_does_not_fit_is_left_out(tiny_families, monkeypatch, capsys):
    def fits(work):
        method, (items,) = work.func.__name__, work.args
        if method == "pack" and items > 1:
            raise torch.OutOfMemoryError
        return 0.5

    monkeypatch.setattr("tasks.measure._seconds", fits)
    assert run([*COMMAND, tiny_families["flux"]]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[-4] for line in out if "500.0" in line] == ["4", "1"]
    assert out[-2].startswith("with --peak-tflops, from the device's data sheet")
    assert out[-1] == "left out, as it does not fit into memory: forward and backward, pairs: 2"


def test_a_model_that_does_not_fit_is_one_line(tiny_families, monkeypatch, capsys):
    def too_large(*arguments):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("deployments.bench.utilization.build_trainable", too_large)
    assert run([*COMMAND, tiny_families["flux"]]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "does not fit into the memory of model.device 'cpu'; build a smaller share" in err


class Unguided:
    """Stands for a policy of which nothing is computed."""

    num_passes = 1
    transformer = nn.Module()

    def in_training(self):
        return self

    as_reference = in_training


class GuidedReference(Unguided):
    """Its reference policy has a guidance of its own."""

    def as_reference(self):
        found = Unguided()
        found.num_passes = 2
        return found


UNGUIDED = Unguided()


def test_a_step_that_asks_the_reference_is_several_velocities(monkeypatch):
    """With a KL in the reward every trained step has two; FLOPs are counted so, too."""
    monkeypatch.setattr("tasks.measure._seconds", lambda work: 2.0)
    config = config_of("flux", algorithm={"kl_reward": 0.1, "trained_fraction": 0.67})
    assert config.num_trained_steps == 2  # of 3
    found = work_seconds(UNGUIDED, config, {}, [("step", 1), ("pack", 1)], rounds=1)
    assert found == {("step", 1): [pytest.approx(2 * 5 / 3)], ("pack", 1): [2.0]}
    found = work_seconds(GuidedReference(), config, {}, [("step", 1)], rounds=1)
    assert found == {("step", 1): [pytest.approx(2 * 7 / 3)]}


@pytest.mark.parametrize(
    ("until", "expected", "ran"),
    [
        (0.5, {("step", 1): 1, ("pack", 1): 0, ("step", 4): 0}, 2),
        (1.5, {("step", 1): 1, ("pack", 1): 1, ("step", 4): 0}, 4),
        (3.5, {("step", 1): 1, ("pack", 1): 1, ("step", 4): 1}, 6),
        (99.0, {("step", 1): 3, ("pack", 1): 3, ("step", 4): 3}, 12),
    ],
)
def test_when_time_is_over_no_size_is_begun_but_what_ran_is_timed(
    until, expected, ran, monkeypatch
):
    """Each work takes 1 s. The smaller sizes come first."""
    clock = [0.0]

    def seconds(work):
        clock[0] += 1.0
        return 1.0

    monkeypatch.setattr("tasks.measure._seconds", seconds)
    monkeypatch.setattr("tasks.measure.monotonic", lambda: clock[0])
    works = [("step", 4), ("step", 1), ("pack", 1)]
    found = work_seconds(UNGUIDED, config_of("flux"), {}, works, rounds=3, until=until)
    assert {each: len(timed) for each, timed in found.items()} == expected
    assert clock[0] == ran


def test_shares_by_hand():
    sizes = dict.fromkeys((field.name for field in fields(Sizes)), 0)
    sizes = Sizes(**sizes | {"step_flops": 3 * 10**12, "pair_flops": 8 * 10**12})
    found = {("step", 4): [9.0, 0.5, 0.25], ("pack", 1): [2.0], ("pack", 2): [1.0, 3.0]}
    step, one, two = rows_of(found, sizes)
    assert step == Row("step", items=4, seconds=0.5, flops=12e12)
    assert [row.tflops for row in (step, one, two)] == [24.0, 4.0, 8.0]
    console = Console(record=True, width=200)
    print_rows([step, one, two], 3, 100.0, console)
    *_, first, second, third, last = console.export_text().splitlines()
    assert first.split()[-5:] == ["4", "500.0", "12", "24", "24.0%"]
    assert second.split()[-5:] == ["1", "2000.0", "8", "4", "4.0%"]
    assert third.split()[-5:] == ["2", "2000.0", "16", "8", "8.0%"]
    assert last.endswith("have tflops = 100: mfu_denoise = 0.24, mfu_train = 0.08")
