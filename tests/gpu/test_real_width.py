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
from digen_core.models.offload import off_device
from digen_core.models.pipeline import cuda_graphs
from digen_core.models.pipeline.float8 import require_float8
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.trainable import trainable_parameters
from digen_core.planning.memory_count import memory_of
from digen_core.planning.model_settings import MODEL_CONFIGS
from support.captures import computed_again, taped
from support.families import FAMILIES, PUBLISHED, frames_of, sliced
from support.gpu import DEVICES, peak_bytes, relative_error

pytestmark = pytest.mark.slow

SAMPLES = 2
BOUNDS = {"cpu": 1e-5, "cuda": 2e-2}  # float32; bfloat16, whose numbers have 8 bits
ROUNDING = {"cpu": 1e-6, "cuda": 2e-4}  # of the same operations in other kernels


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


def velocity(
    policy: PipelinePolicy, count: int = SAMPLES, seed: int = 1, sigma: float = 0.5
) -> torch.Tensor:
    """The velocity of some samples, the same each time."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    x = torch.randn(
        count,
        *policy.latent_shape,
        generator=generator,
        device=policy.device,
        dtype=policy.latent_dtype,
    )
    torch.manual_seed(1 + seed)
    condition = {
        name: value.expand(count, *value.shape[1:])
        for name, value in noise_condition(policy).items()
    }
    levels = torch.full((count,), sigma, device=policy.device)
    return policy.velocity(x, levels, policy.without_padding(condition))


def gradients(policy: PipelinePolicy) -> torch.Tensor:
    """The gradient of a loss, as one vector."""
    found = torch.autograd.grad(
        velocity(policy).square().mean(),
        list(trainable_parameters(policy).values()),
        materialize_grads=True,  # the last block's text reaches no output in some families
    )
    return torch.cat([one.flatten() for one in found])


@pytest.mark.ci_but_one
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
    compiled = place.build(place.config(model={"compile": True}, train=train))
    replayed = velocity(compiled).detach()
    assert relative_error(replayed, velocity(plain).detach()) <= BOUNDS[place.device]
    with torch.no_grad():  # which is compiled by itself
        assert relative_error(velocity(compiled), replayed) <= ROUNDING[place.device]
    assert relative_error(gradients(compiled), gradients(plain)) <= 2 * BOUNDS[place.device]


@pytest.mark.parametrize(
    "family",
    sliced(FAMILIES, often=["flux"]),
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


@pytest.mark.parametrize("family", sliced(FAMILIES, often=["flux"]))
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
        with policy.sampling("float8"):
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
    """Bytes of the positions that Qwen-Image and 2.1 copy from the host, which no CPU has to."""
    if policy.config.family == "qwen_image":
        return policy.transformer.pos_embed.pos_freqs.nbytes
    if policy.config.family == "qwen_image21":
        return sum(table.nbytes for table in policy.transformer.pos_embed.freqs)
    return 0


@pytest.fixture
def captures(place, monkeypatch):
    """Return a function: graphs are few, and on a CPU a stand-in captures."""

    def begin(most: int, *, compiles: bool) -> None:
        monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", most)
        if place.device == "cpu":
            capture = computed_again if compiles else taped
            monkeypatch.setattr(cuda_graphs, "DeviceCapture", lambda device: capture)

    return begin


GRAPHS = [
    {},
    {"rollout": {"precision": "float8"}, "algorithm": {"correction": "recompute"}},
    {"model": {"compile": True}},
]


@pytest.mark.parametrize(
    "family",
    sliced(FAMILIES, often=["sd3"]),
)
@pytest.mark.parametrize(
    "tables",
    [
        pytest.param(GRAPHS[0], marks=pytest.mark.families),  # daily: test_cuda_graphs.py
        *(pytest.param(own, marks=pytest.mark.nightly) for own in GRAPHS[1:]),
    ],
    ids=["plain", "float8", "compiled"],
)
def test_graphs_compute_what_the_pass_does(place, tables, captures):
    """Of other numbers, batches and weights, also where these lie elsewhere since."""
    captures(2, compiles="model" in tables)
    tables = {**tables, "rollout": {**tables.get("rollout", {}), "cuda_graphs": True}}
    policy = place.build(place.config(**tables))

    @torch.no_grad()
    def compare(**given) -> None:
        with policy.sampling("float8"):
            found = velocity(policy, **given)
            for graphed in policy.graphed:
                graphed.is_on = False
            expected = velocity(policy, **given)
        assert relative_error(found, expected) <= BOUNDS[place.device] / 100

    for count, seed, sigma in ((2, 1, 0.5), (2, 2, 0.25), (1, 3, 0.5), (2, 4, 0.75), (1, 5, 0.1)):
        compare(count=count, seed=seed, sigma=sigma)
    for parameter in trainable_parameters(policy).values():
        parameter.data.mul_(0.5)  # as a push writes them
    compare(seed=6)
    with off_device(policy.transformers, policy.device):
        pass
    for seed in (7, 8):
        compare(seed=seed)
    captures(1, compiles="model" in tables)
    for count in (1, 2, 1, 2):  # each shape drives the other out
        compare(count=count, seed=9)


@pytest.mark.ci_but_one
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
        except ConfigError:
            assert kernel == "flash" or place.device == "cpu", kernel
    assert ({"native", "math"} if place.device == "cpu" else kernels - {"flash"}) & kernels <= {
        *found
    }
    for kernel, each in found.items():
        for one, native in zip(each, found["native"], strict=True):
            assert relative_error(one, native) <= BOUNDS[place.device], kernel
