"""The search for a GPU's best settings, on a CPU with tiny models, and on a GPU if one is here."""

from dataclasses import replace

import pytest
import torch

from deployments.bench import gpu
from deployments.bench.gpu import (
    JOBS,
    Found,
    Setting,
    config_of,
    peak_of_device,
    search,
    sizes_up_to,
    summary,
)
from deployments.bench.utilization import Row
from deployments.cli import run
from digen_core.config.families import FAMILIES as FAMILY_ROWS
from support.families import FAMILIES, frames_of

SETTINGS = ["--device", "cpu", "--blocks", "1", "--rounds", "1"]


@pytest.fixture
def config_file(tiny_families, tmp_path):
    """Write a config of a tiny model, of 4 samples a fragment and 2 pairs a pack."""

    def write(family: str) -> str:
        file = tmp_path / f"{family}.toml"
        file.write_text(f"""
[rewards]
jpeg_compressibility = 1.0

[model]
family = "{family}"
path = "{tiny_families[family]}"
height = 32
width = 48
num_frames = {frames_of(family)}
max_sequence_length = 24

[rollout]
group_size = 4
fragment_size = 4
num_steps = 3

[train]
pack_size = 2
""")
        return str(file)

    return write


def rows_in(out: str) -> list[list[str]]:
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines][2:]


@pytest.mark.ci
@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(f, marks=pytest.mark.families) for f in FAMILIES[1:])]
)
def test_every_family_is_measured_with_every_kernel(config_file, family, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "COMPILED", ())
    file = config_file(family)
    assert run(["bench", "gpu", file, *SETTINGS, "--peak-tflops", "0.5"]) == 0
    out = capsys.readouterr().out
    rows = rows_in(out)
    tried = {row[1] for row in rows}
    assert tried == {*FAMILY_ROWS[family].attention} - {"math"}
    native = [row for row in rows if row[1] == "native" and row[3] == "model"]
    works = [["step", "1"], ["step", "4"], ["pack", "1"], ["pack", "2"]]
    assert [row[4:6] for row in native] == works
    assert all(float(row[6]) > 0 and row[8].endswith("%") for row in native)
    assert [row[4:6] for row in rows if row[3] == "float8"] == works, "of the best kernel"
    graphs = next(row for row in rows if row[3] == "model, graphs")
    assert graphs[4].startswith("left out: rollout.cuda_graphs is true, which takes a GPU")
    if "cudnn" in tried:
        assert "needs a CUDA device" in next(row for row in rows if row[1] == "cudnn")[4]
    assert f"{file}: attention " in out.splitlines()[-1]
    assert "mfu_train = " in out.splitlines()[-1]


@pytest.mark.families
def test_compiled_settings_are_measured(config_file, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "COMPILED", (True,))
    monkeypatch.setattr(gpu, "works_of", lambda config: [("step", 1), ("pack", 1)])
    assert run(["bench", "gpu", config_file("flux"), *SETTINGS]) == 0
    modes = {row[2] for row in rows_in(capsys.readouterr().out) if row[4] == "pack"}
    assert modes == {"false", "true"}


def test_no_setting_is_begun_when_time_is_over(config_file, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "measure", pytest.fail)
    assert run(["bench", "gpu", config_file("flux"), *SETTINGS, "--minutes", "1e-9"]) == 0
    out = capsys.readouterr().out
    assert {row[4] for row in rows_in(out)} == {"left out: no time is left"}
    assert out.splitlines()[-1].endswith("nothing that works was found")


def test_the_models_share_the_time(monkeypatch):
    clock, ends = [100.0], {}

    def tried(name, config, *, end, **settings):
        ends.setdefault(name, end)
        clock[0] += 20.0  # a setting takes 20 s, and two are tried of each model

    monkeypatch.setattr(gpu, "monotonic", lambda: clock[0])
    monkeypatch.setattr(gpu, "try_setting", tried)
    monkeypatch.setattr(gpu, "FAMILIES", dict.fromkeys(FAMILY_ROWS, FAMILY_ROWS["sd3"]))
    names = [*JOBS][:3]
    gpu.main(names, device="cpu", share=1.0, rounds=1, minutes=5.0, peak=0.0)
    assert [*ends.values()] == [200.0, 120.0 + 280 / 2, 140.0 + 260]


def test_a_device_that_failed_is_told_in_a_line(config_file, capsys, monkeypatch):
    def fail(*arguments):
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nmore")

    monkeypatch.setattr(gpu, "measure", fail)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", fail)
    assert run(["bench", "gpu", config_file("flux"), *SETTINGS]) == 2
    out, err = capsys.readouterr()
    assert "left out: CUDA error: an illegal memory access |" in out
    assert "the GPU failed in the setting above: CUDA error: an illegal memory access; give" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so(capsys):
    assert run(["bench", "gpu"]) == 0
    assert capsys.readouterr().out.startswith("no GPU is here: nothing is measured")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--blocks", "0.0"), ("--rounds", "0"), ("--minutes", "-1.0"), ("--peak-tflops", "nan")],
)
def test_nonsense_is_refused(option, value, capsys):
    assert run(["bench", "gpu", option, value]) == 2
    assert f"{option} is {value}; use " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0),  # a seventh of one
        ("NVIDIA H100 PCIe", 756),
        ("unheard of", 0),
    ],
)
def test_the_peak_of_a_device_goes_by_its_whole_name(name, peak, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    assert peak_of_device(torch.device("cuda")) == peak
    assert peak_of_device(torch.device("cpu")) == 0


def test_a_device_that_is_not_here_is_refused(capsys):
    assert run(["bench", "gpu", "--device", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"), [("flow_grpo_flux_fst", "flow_grpo_flux_fast"), ("medium", "model.path")]
)
def test_what_cannot_be_measured_is_refused_before_anything_is(name, message, capsys):
    assert run(["bench", "gpu", "flow_grpo_flux_fast", name, "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_jobs_are_configs_of_the_missions_models():
    found = {name: config_of(name, "cpu") for name in JOBS}
    assert [config.model.family for config in found.values()] == [
        "flux",
        "flux",
        "qwen_image",
        "wan",
        "hunyuan_video",
    ]
    for name, config in found.items():
        assert ("LoRA" in name) == (config.train.lora is not None)
        assert config.model.dtype == "bfloat16"


# --- the search ---------------------------------------------------------------------------------


def rows(step: float, pack: float) -> list[Row]:
    return [Row("step", 1, step, 1e12), Row("pack", 1, 9.0, 1e12), Row("pack", 4, pack, 4e12)]


def searched(seconds: dict, graphs: float = 1.0) -> Found | None:
    """Search where settings have the given seconds of a step and a pack of 4; others fail.

    With CUDA graphs a step takes ``graphs`` times as long.
    """
    asked = []

    def tried(config):
        setting = Setting.in_config(config)
        asked.append(setting)
        found = seconds.get((setting.attention, setting.compile))
        if setting.precision == "float8":
            found = 0.01, 0.01  # never chosen
        elif setting.cuda_graphs and found:
            found = graphs * found[0], found[1]
        return found and Found(setting, rows(*found))

    found = search(config_of("flow_grpo_flux_fast", "cpu"), tried)
    assert len(asked) == len({*asked})
    low = [setting for setting in asked if setting.precision == "float8"]
    assert low == ([replace(found.setting, precision="float8")] if found else [])
    return found


def test_the_best_kernel_is_then_compiled():
    autotuned = "max-autotune-no-cudagraphs"
    seconds = {
        ("native", False): (2.0, 4.0),
        ("cudnn", False): (1.0, 2.0),
        ("cudnn", True): (0.5, 1.0),
        ("cudnn", autotuned): (0.6, 1.2),
        ("native", True): (0.1, 0.1),  # never tried
    }
    found = searched(seconds)
    assert found.setting == Setting("cudnn", compile=True)
    assert found.best("pack").items == 4
    assert searched(seconds, 1.1).setting == Setting("cudnn", compile=True)
    assert searched(seconds, 0.5).setting == Setting("cudnn", compile=True, cuda_graphs=True)
    seconds["cudnn", True] = seconds["cudnn", autotuned] = (3.0, 6.0)
    assert searched(seconds).setting == Setting("cudnn", compile=False)
    assert searched(seconds, 0.5).setting == Setting("cudnn", compile=False, cuda_graphs=True)
    assert searched({}) is None


def test_seconds_of_a_sample_by_hand():
    config = config_of("flow_grpo_flux_fast", "cpu")
    found = Found(Setting("native", compile=False), rows(0.5, 2.0))
    steps, trained = config.rollout.num_steps, config.num_trained_steps
    assert found.sample_seconds(config) == pytest.approx(0.5 * steps + 0.5 * trained)
    assert summary("flux", found, 100.0) == (
        "flux: attention native, compile false; step of 1: 2 TFLOP/s, pack of 4: 2 TFLOP/s; "
        "mfu_denoise = 0.02; mfu_train = 0.02"
    )
    assert summary("flux", found, 0.0).endswith("pack of 4: 2 TFLOP/s")


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (4, [1, 4]), (9, [1, 4, 9]), (16, [1, 4, 16])]
)
def test_sizes_by_hand(most, sizes):
    assert sizes_up_to(most) == sizes


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_the_missions_models_on_this_gpu(capsys):
    assert run(["bench", "gpu", "--blocks", "0.001", "--rounds", "1", "--minutes", "8"]) == 0
    out = capsys.readouterr().out
    assert "nothing that works was found" not in out
    assert {row[0] for row in rows_in(out) if row[4] == "pack"} == {*JOBS}
