"""Every family at real width with one block of each kind on a GPU; on a CPU at tiny size."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from deployments.bench.utilization import cut_settings, noise_condition
from digen_core.config.families import FAMILIES as FAMILY_ROWS
from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.models.loading import build_trainable
from digen_core.models.pipeline import cuda_graphs
from digen_core.models.pipeline.float8 import require_float8
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.trainable import trainable_parameters
from digen_core.planning.memory_count import memory_of
from digen_core.planning.model_settings import MODEL_CONFIGS
from support.captures import taped
from support.families import FAMILIES, PUBLISHED, frames_of
from support.gpu import DEVICES, peak_bytes, relative_error

pytestmark = pytest.mark.slow

SAMPLES = 2
BOUNDS = {"cpu": 1e-5, "cuda": 2e-2}  # float32; bfloat16, whose numbers have 8 bits


@dataclass
class Place:
    """A device, and the settings of the family's model for it."""

    family: str
    device: str
    folder: Path

    def config(self, **tables) -> RunConfig:
        model = {"height": 64, "width": 64, "num_frames": frames_of(self.family)}
        model |= {"max_sequence_length": 24, "dtype": "float32"}
        if self.device == "cuda":
            side, frames = (256, 17) if self.family in VIDEO_FAMILIES else (512, 1)
            model = {"height": side, "width": side, "num_frames": frames, "dtype": "bfloat16"}
        tree = {
            "model": {"family": self.family, "guidance_scale": 3.0, "device": self.device, **model},
            "rollout": {"group_size": SAMPLES, "fragment_size": SAMPLES, "num_steps": 3},
            "train": {"lora": {"rank": 4}, "pack_size": SAMPLES},
        }
        for name, table in tables.items():
            tree[name] = {**tree.get(name, {}), **table}
        return RunConfig.model_validate(tree)

    def build(self, config: RunConfig) -> PipelinePolicy:
        """Build a model whose numbers, adapters included, are the same each time."""
        torch.manual_seed(0)
        policy = build_trainable(config, self.folder)
        for parameter in trainable_parameters(policy).values():
            torch.nn.init.normal_(parameter, std=0.02)
        return policy


@pytest.fixture(params=DEVICES)
def place(request, family, tiny_families, tmp_path) -> Place:
    tiny = request.param == "cpu"
    source = Path(tiny_families[family]) if tiny else MODEL_CONFIGS / PUBLISHED[family]
    cut_settings(source, tmp_path, 0.001)
    return Place(family, request.param, tmp_path)


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


def velocity(policy: PipelinePolicy) -> torch.Tensor:
    """The velocity of some samples, the same each time."""
    generator = torch.Generator(policy.device).manual_seed(1)
    x = torch.randn(
        SAMPLES,
        *policy.latent_shape,
        generator=generator,
        device=policy.device,
        dtype=policy.latent_dtype,
    )
    torch.manual_seed(2)
    condition = {
        name: value.expand(SAMPLES, *value.shape[1:])
        for name, value in noise_condition(policy).items()
    }
    sigma = torch.full((SAMPLES,), 0.5, device=policy.device)
    return policy.velocity(x, sigma, policy.without_padding(condition))


def gradients(policy: PipelinePolicy) -> torch.Tensor:
    """The gradient of a loss, as one vector."""
    found = torch.autograd.grad(
        velocity(policy).square().mean(),
        list(trainable_parameters(policy).values()),
        materialize_grads=True,  # the last block's text reaches no output in some families
    )
    return torch.cat([one.flatten() for one in found])


def test_a_trainer_recomputes_what_was_generated(place):
    """Without gradients, and with those that checkpointing computes again."""
    policy = place.build(place.config(train={"gradient_checkpointing": True}))
    with torch.no_grad():
        generated = velocity(policy)
    assert generated.isfinite().all()
    assert relative_error(velocity(policy).detach(), generated) <= BOUNDS[place.device] / 2
    plain = place.build(place.config())
    assert relative_error(gradients(policy), gradients(plain)) <= BOUNDS[place.device]
    assert gradients(policy).abs().max() > 0


@pytest.mark.families
@pytest.mark.timeout(900)
def test_compiled_blocks_compute_the_same(place):
    """All weights are trained. With vectorized loops HunyuanVideo's gradients were off on CPUs."""
    train = {"lora": None}
    plain = place.build(place.config(train=train))
    train["gradient_checkpointing"] = True
    recomputed = {"correction": "recompute"}  # bfloat16 rounds log-probs otherwise when compiled
    compiled = place.config(model={"compile": True}, train=train, algorithm=recomputed)
    compiled = place.build(compiled)
    assert (
        relative_error(velocity(compiled).detach(), velocity(plain).detach())
        <= (BOUNDS[place.device])
    )
    assert relative_error(gradients(compiled), gradients(plain)) <= 2 * BOUNDS[place.device]


@pytest.mark.parametrize(
    "family",
    ["flux", *(pytest.param(n, marks=pytest.mark.families) for n in FAMILIES if n != "flux")],
)
@pytest.mark.parametrize(
    "checkpointing",
    [pytest.param(False, marks=pytest.mark.nightly), True],  # without: also test_memory.py
)
def test_peaks_are_those_of_the_memory_model(place, checkpointing, record_property):
    config = place.config(train={"gradient_checkpointing": checkpointing})
    expected = memory_of(config, place.folder)
    policy = place.build(config)
    parameters = list(trainable_parameters(policy).values())

    def step() -> torch.Tensor:
        x = torch.randn(
            SAMPLES, *policy.latent_shape, device=policy.device, dtype=policy.latent_dtype
        )
        sigma = torch.rand(SAMPLES, device=policy.device)
        return policy.velocity(x, sigma, policy.blank_condition(SAMPLES))

    @torch.no_grad()
    def generate() -> None:
        step()

    def train() -> None:
        torch.autograd.grad(step().sum(), parameters, allow_unused=True)

    if place.device == "cuda":  # workspaces of libraries, which the first call leaves behind
        generate()
        train()
    copied = tables_of(policy) if place.device == "cpu" else 0
    peaks = peak_bytes(place.device, generate), peak_bytes(place.device, train)
    counted = expected.step(SAMPLES) - copied, expected.pack(SAMPLES) - copied
    record_property("peaks of step and pack, counted ones", (peaks, counted))
    for peak, count in zip(peaks, counted, strict=True):
        assert 0.9 * count <= peak <= 1.1 * count


def test_samples_in_float8_are_near_those_of_the_model(place, record_property):
    """And what a device holds for them, and what a step then takes, is that of the memory model."""
    low = {"rollout": {"precision": "float8"}, "algorithm": {"correction": "recompute"}}
    config = place.config(**low)
    policy = place.build(config)
    try:
        require_float8(policy.device)
    except ConfigError as error:
        pytest.skip(str(error))
    own = velocity(policy).detach()

    @torch.no_grad()
    def sampled() -> torch.Tensor:
        with policy.sampling():
            return velocity(policy)

    error = relative_error(sampled(), own)
    assert 1e-4 < error < 0.2
    assert torch.equal(velocity(policy).detach(), own)
    held = sum(each.nbytes for layer in policy.float8 for each in layer.buffers())
    expected = memory_of(config, place.folder)
    assert held == expected.low_precision > 0
    peak = peak_bytes(place.device, sampled)
    record_property("error, peak of a step, counted one", (error, peak, expected.step(SAMPLES)))
    if place.device == "cuda":  # the product of a CPU copies what it multiplies
        assert 0.8 * expected.step(SAMPLES) <= peak <= 1.1 * expected.step(SAMPLES)


def tables_of(policy: PipelinePolicy) -> int:
    """Bytes of the positions that Qwen-Image copies from the host, which no CPU has to."""
    is_qwen = policy.config.family == "qwen_image"
    return policy.transformer.pos_embed.pos_freqs.nbytes if is_qwen else 0


def test_graphs_compute_the_same(place, monkeypatch):
    """Also with other weights, which a push writes where they lie. On a CPU a stand-in captures."""
    if place.device == "cpu":
        monkeypatch.setattr(cuda_graphs, "DeviceCapture", lambda device: taped)
    plain = place.build(place.config())
    graphed = place.build(place.config(rollout={"cuda_graphs": True}))
    for scale in (1.0, 0.5):
        for policy in (plain, graphed):
            for parameter in trainable_parameters(policy).values():
                parameter.data.mul_(scale)
        with torch.no_grad():
            expected = velocity(plain)
            for _ in range(3):
                with graphed.sampling():
                    assert relative_error(velocity(graphed), expected) <= BOUNDS[place.device] / 10


def test_kernels_of_attention_agree(place):
    """All that this device has, and their gradients; which those are is known for torch's own."""
    kernels = {*FAMILY_ROWS[place.family].attention}
    found = {}
    for kernel in sorted(kernels):
        try:
            policy = place.build(place.config(model={"attention": kernel}))
            with torch.no_grad():
                generated = velocity(policy)
            found[kernel] = generated, gradients(policy)
        except (ConfigError, RuntimeError):
            assert kernel == "flash" or place.device == "cpu", kernel
    assert ({"native", "math"} if place.device == "cpu" else kernels - {"flash"}) & kernels <= {
        *found
    }
    for kernel, each in found.items():
        for one, native in zip(each, found["native"], strict=True):
            assert relative_error(one, native) <= BOUNDS[place.device], kernel
