"""The memory model: allocations counted without allocating, held to what a model really takes."""

import json
from dataclasses import replace
from pathlib import Path
from warnings import catch_warnings

import pytest
import torch
from torch import nn

from deployments.cli import run
from deployments.shipped import recipe_files
from deployments.views.memory import Needs, quantities
from digen_core.config.families import FAMILIES as FAMILY_ROWS
from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.data.prompts import Prompt
from digen_core.models import equal_blocks
from digen_core.models.loading import prepare
from digen_core.models.trainable import make_trainable, trainable_parameters
from digen_core.planning.allocations import FakeModules
from digen_core.planning.memory import CONTEXT_BYTES, Memory
from digen_core.planning.memory_count import memory_of
from digen_core.records import SHOWN_SAMPLES
from digen_core.rollout.conditions import encoded
from support.edits import source
from support.families import EDITED, MODELS, QWEN_EDITORS, family_of, frames_of, load_tiny, sliced
from support.gang_memory import allocated
from support.paths import ROOT
from support.planning import TRAINED_ON_MORE_BLOCKS, counted_once, with_more_blocks

__all__ = ["counted_once"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counted_once")]

GB = 10**9


@pytest.fixture(params=MODELS)
def family(request) -> str:
    return request.param


def config_of(family: str, **tables) -> RunConfig:
    """Images of 64 x 64 pixels, videos of 5 frames; packs of up to 6 pairs."""
    model = {"height": 64, "width": 64, "num_frames": frames_of(family), "guidance_scale": 3.0}
    tree = {
        "model": {"family": family_of(family), "max_sequence_length": 24, **model},
        "rollout": {"group_size": 4, "fragment_size": 4, "num_steps": 3},
        "train": {"lora": {"rank": 3}, "pack_size": 6},
    }
    for name, table in tables.items():
        tree[name] = {**tree.get(name, {}), **table}
    return RunConfig.model_validate(tree)


# --- counting ---------------------------------------------------------------------------------


def linear(rows: int, columns: int) -> nn.Linear:
    with torch.device("meta"):
        return nn.Linear(columns, rows, bias=False)


def test_a_matrix_product_by_hand():
    """100 x 8 numbers go in and 100 x 16 come out: 4 bytes each."""
    module = linear(16, 8)
    fake = FakeModules(module)
    assert fake.peak(lambda: module(torch.empty(100, 8))) == 4 * (800 + 1600)


def test_what_nobody_holds_any_more_does_not_count():
    module = linear(8, 8)
    fake = FakeModules(module)

    def chain():
        x = torch.empty(100, 8)
        with torch.no_grad():
            for _ in range(10):
                x = module(x)

    assert fake.peak(chain) == 4 * 2 * 800


def test_what_autograd_keeps_counts():
    """The inputs of ten products are kept for the gradient of their one weight."""
    module = linear(8, 8)
    fake = FakeModules(module)

    def forward():
        x = torch.empty(100, 8)
        for _ in range(10):
            x = module(x)

    assert fake.peak(forward) == 4 * 11 * 800


def test_views_share_their_memory_and_modules_do_not_count():
    module = linear(8, 8)
    fake = FakeModules(module)
    assert fake.peak(lambda: torch.empty(10, 8).view(80)[:40].reshape(5, 8)) == 4 * 80
    assert fake.peak(lambda: module.weight.t()) == 0


def test_attention_makes_no_matrix_of_all_pairs_of_tokens():
    fake = FakeModules(linear(1, 1))
    shape = (1, 4, 4096, 64)

    def attend():
        q, k, v = (torch.empty(shape) for _ in range(3))
        with torch.no_grad():
            nn.functional.scaled_dot_product_attention(q, k, v)

    one = 4 * 4 * 4096 * 64
    assert 4 * one <= fake.peak(attend) < 5 * one
    assert fake.peak(attend) < 4 * 4 * 4096**2 / 10


def test_an_rms_norm_keeps_what_it_is_given_and_a_number_of_each_row():
    """As the kernel on a GPU; with a weight of another dtype it is none, and keeps copies."""
    norms = {}
    for dtype in (torch.bfloat16, torch.float32):
        with torch.device("meta"):
            norms[dtype] = nn.RMSNorm(8, eps=1e-6, dtype=dtype)

    def three(norm):
        x = torch.empty(100, 8, dtype=torch.bfloat16)
        for _ in range(3):
            x = norm(x)
        return x

    norm = norms[torch.bfloat16]
    fake = FakeModules(norm)
    assert fake.peak(lambda: three(norm)) == 4 * 1600 + 3 * 400
    # a sum, its gradient, and that of the weight; what is not kept any more makes room for others
    assert fake.peak(lambda: three(norm).sum().backward()) == 4 * 1600 + 3 * 400 + 2 + 2 + 16
    with torch.no_grad():
        assert fake.peak(lambda: three(norm)) == 2 * 1600 + 400
    other = norms[torch.float32]
    with catch_warnings(action="ignore"):  # torch says once that it has no kernel
        assert FakeModules(other).peak(lambda: three(other)) > 4 * 3200
    assert torch.nn.functional.rms_norm(torch.full((1, 2), 3.0), [2]).tolist() == [[1, 1]]


# --- real models ------------------------------------------------------------------------------


LORA = {"rank": 3}
TRAINED = sliced(MODELS, LORA, False, False)
TRAINED += [("flux", None, False, False), ("wan-a14b", None, True, False)]
TRAINED += [
    pytest.param(*case, marks=pytest.mark.nightly)
    for case in (
        ("flux", LORA, True, False),
        (QWEN_EDITORS[1], LORA, False, True),
        ("wan", None, True, False),
        ("flux2", LORA, False, True),
        ("flux2", None, True, True),
        (QWEN_EDITORS[0], LORA, False, True),
    )
]


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("family", "lora", "checkpointing", "edits"), TRAINED)
def test_peaks_are_those_of_a_real_model(tiny_families, family, lora, checkpointing, edits):
    train = {"lora": lora, "gradient_checkpointing": checkpointing}
    image, prompts = (source(0),) if edits else (), EDITED if edits else {}
    config = config_of(family, train=train, prompts=prompts)
    found = memory_of(config, Path(tiny_families[family]))
    size = {"height": 64, "width": 64}
    policy = load_tiny(tiny_families[family], family, source_image=edits, **size)
    make_trainable(policy, config.train.lora, gradient_checkpointing=checkpointing)
    base = sum(p.nbytes for name, p in policy.transformer.named_parameters() if "lora" not in name)
    trained = trainable_parameters(policy)
    assert found.weights == base
    assert found.gradient_sum == sum(p.nbytes for p in trained.values())
    assert found.adapters == (2 * found.gradient_sum if lora else 0)

    def velocity(count, condition):
        x = torch.randn(count, *policy.latent_shape)
        return policy.velocity(x, 0.8 * torch.rand(count), condition)

    def pack(count, condition):
        loss = velocity(count, condition).sum()
        torch.autograd.grad(loss, list(trained.values()), allow_unused=True)

    # Qwen-Image's table of positions, 0.3 MB, of 2.1 0.6 MB, is no buffer, and counts: it is copied
    # to a device.
    counts = {"qwen_image": (6,), "qwen_image21": (12,)}
    for count in counts.get(family_of(family), (1, 6)):
        condition = encoded(policy, [Prompt("a red circle", images=image)] * count)
        beside = sum(value.nbytes for value in condition.values())  # there already
        with torch.no_grad():
            step = allocated(velocity, count, condition) + beside
        assert found.step(count) == pytest.approx(step, rel=0.1)
        gradient = allocated(pack, count, condition) + beside
        assert found.pack(count) == pytest.approx(gradient, rel=0.1)


LOW = {"rollout": {"precision": "float8"}, "algorithm": {"correction": "recompute"}}


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("family", "lora"), [("flux", LORA), ("wan", None)])
def test_rollouts_in_float8_take_a_byte_more_of_each_weight(
    tiny_families, family, lora, monkeypatch
):
    """And four of each row, on devices that generate; peaks are those of the real passes.

    Those are of products that make their result and no more, as a GPU's are: a CPU's copy.
    """
    train = {"lora": lora}
    folder = Path(tiny_families[family])
    plain, found = (memory_of(config_of(family, train=train, **own), folder) for own in ({}, LOW))
    policy = load_tiny(folder, family, height=64, width=64)
    prepare(policy, config_of(family, train=train, **LOW))
    weights = [layer.weight for layer in policy.float8]
    assert found.low_precision == sum(w.numel() + 4 * len(w) for w in weights)
    assert plain.low_precision == 0
    assert replace(found, low_precision=0, step=plain.step) == plain

    def product(left, right, *scales, output_dtype):
        return torch.zeros(len(left), right.shape[1], dtype=output_dtype)

    monkeypatch.setattr(torch.nn.functional, "scaled_mm", product)

    @torch.no_grad()
    def step(count, condition):
        with policy.sampling("float8"):
            x = torch.randn(count, *policy.latent_shape)
            policy.velocity(x, 0.8 * torch.rand(count), condition)

    for count in (1, 6):
        condition = encoded(policy, [Prompt("a red circle")] * count)
        beside = sum(value.nbytes for value in condition.values())
        step(count, condition)  # which makes what is held
        assert found.step(count) == pytest.approx(
            allocated(step, count, condition) + beside, rel=0.1
        )
    held = sum(own.nbytes for layer in policy.float8 for own in layer.buffers())
    assert held == found.low_precision


@pytest.mark.ci
def test_candidates_in_float8_take_what_such_samples_do(tiny_families):
    """A step of either kind has to fit; in float8 it takes more, beside the rounded weights."""
    folder = Path(tiny_families["flux"])
    screening = {"candidates": 32, "num_steps": 2, "precision": "float8"}
    candidates = {"rollout": {"screening": screening}}
    plain, low, found = (
        memory_of(config_of("flux", train={"lora": LORA}, **own), folder)
        for own in ({}, LOW, candidates)
    )
    assert found.low_precision == low.low_precision > 0
    for count in (1, 6):
        assert found.step(count) == max(plain.step(count), low.step(count)) > plain.step(count)


@pytest.mark.ci
def test_cuda_graphs_keep_a_step_on_devices_that_generate(tiny_families):
    folder = Path(tiny_families["sd3"])
    plain, graphed = (
        memory_of(config_of("sd3", rollout={"cuda_graphs": on}), folder) for on in (False, True)
    )
    assert graphed == replace(plain, graphed=True)
    step = graphed.step(2)
    assert step > 0
    assert graphed.rollout(2) == pytest.approx(plain.rollout(2) + step, abs=1)
    assert graphed.trainer(2) == plain.trainer(2)
    generates = plain.rollout(2) + plain.gradient_sum
    trains = plain.both(2, 64)
    assert trains > generates
    assert graphed.both(2, 64) == pytest.approx(trains + step, abs=1)


@pytest.mark.ci
@pytest.mark.parametrize(("family", "train"), TRAINED_ON_MORE_BLOCKS, ids=str)
def test_of_equal_blocks_a_few_are_counted(tiny_families, tmp_path, family, train, monkeypatch):
    peak, calls = FakeModules.peak, []

    def counted(self, work):
        calls.append(peak(self, work))
        return calls[-1]

    monkeypatch.setattr(FakeModules, "peak", counted)
    config, found = config_of(family, train=train), []
    for fewest in (2, 5):
        (out := tmp_path / str(fewest)).mkdir()
        folder = with_more_blocks(Path(tiny_families[family]), out, family, 5)
        monkeypatch.setattr(equal_blocks, "FEWEST", fewest)
        found.append((memory_of(config, folder), len(calls)))
        calls.clear()
    (few, num_more), (all_blocks, num_calls) = found
    assert num_more > num_calls == 6, "none was left out"
    assert replace(few, pack=all_blocks.pack) == all_blocks
    for count in (1, 6):  # but for rounding, of all weights of one model
        assert few.pack(count) == pytest.approx(all_blocks.pack(count), rel=2e-3)


@pytest.mark.ci
def test_of_two_experts_both_are_held_and_one_may_be_trained(tiny_families):
    found = {
        name: memory_of(config_of("wan-a14b", model=model), Path(tiny_families["wan-a14b"]))
        for name, model in (
            ("both", {}),
            ("high", {"train_experts": "high"}),
            ("low", {"train_experts": "low"}),
        )
    }
    one = memory_of(config_of("wan"), Path(tiny_families["wan"]))
    assert found["both"].weights == found["low"].weights == 2 * one.weights
    assert found["both"].gradient_sum == 2 * one.gradient_sum
    assert found["low"].gradient_sum == found["high"].gradient_sum == one.gradient_sum
    assert found["low"].pack == found["high"].pack == found["both"].pack == one.pack
    whole = {
        name: held(
            config_of("wan-a14b", model={"train_experts": name}, train={"lora": None}),
            Path(tiny_families["wan-a14b"]),
        )
        for name in ("both", "high", "low")
    }
    assert whole["both"].versions == 2 * whole["low"].versions == 2 * whole["high"].versions


@pytest.mark.ci_but_one
def test_the_vae_and_text_encoders_are_those_of_the_folder(tiny_families, family):
    folder = Path(tiny_families[family])
    found = held(config_of(family), folder)
    pipeline = load_tiny(tiny_families[family], family).pipeline
    of_texts = ("text_encoder", "connectors")
    encoders = [own for name, own in pipeline.components.items() if name.startswith(of_texts)]
    expected = sum(p.nbytes for own in encoders if own is not None for p in own.parameters())
    assert found.text_encoders == pytest.approx(expected, rel=0.05)  # tied weights are saved once
    vae = sum(p.nbytes for p in [*pipeline.vae.parameters(), *pipeline.vae.buffers()])
    assert found.vae == vae


@pytest.mark.ci
def test_less_is_needed_where_the_config_says_so(tiny_families):
    folder = Path(tiny_families["flux"])

    def memory(computes: bool = True, **tables) -> Memory:
        return memory_of(config_of("flux", **tables), folder, computes=computes)

    plain = memory()
    assert memory(train={"gradient_checkpointing": True}).pack(6) < 0.7 * plain.pack(6)
    assert memory(computes=False, model={"dtype": "bfloat16"}).weights < 0.6 * plain.weights
    assert memory(model={"vae_slicing": True}).decode(4) < 0.5 * plain.decode(4)
    assert memory(model={"offload": ()}).rollout(4) > plain.rollout(4)
    assert plain.state == memory(computes=False, train={"ema_decay": 0.0}).state * 4 / 3


@pytest.mark.ci
def test_of_several_sizes_the_largest_counts(tiny_families):
    """Samples are trained at the sizes of the config alone, evaluations are at its own."""
    folder = Path(tiny_families["flux"])

    def memory(side: int, *sides: int) -> Memory:
        sizes = [[own, own, 1] for own in sides]
        model = {"height": side, "width": side, "sizes": sizes}
        return memory_of(config_of("flux", model=model), folder)

    small, large = memory(64), memory(128)
    assert memory(64, 64, 128) == memory(64, 128, 64) == large
    trained_small = memory(128, 64, 32)
    assert trained_small == replace(large, pack=small.pack)
    assert small.pack(6) < 0.5 * large.pack(6)


@pytest.mark.ci
def test_of_what_is_not_decoded_only_pictures_count(tiny_families):
    folder, of_latents = Path(tiny_families["flux"]), {"m:f": {"takes": "latents"}}
    large = {"rollout": {"group_size": 64, "fragment_size": 64}}
    decoded = memory_of(config_of("flux", **large), folder)
    shown = memory_of(config_of("flux", **large, rewards=of_latents), folder)
    kept = {"tracking": {"keep_images": "all"}}
    assert memory_of(config_of("flux", **large, **kept, rewards=of_latents), folder) == decoded
    assert (shown.most_decoded, decoded.most_decoded) == (SHOWN_SAMPLES, None)
    assert shown.vae == decoded.vae > 0
    assert shown.decode(SHOWN_SAMPLES) == pytest.approx(decoded.decode(SHOWN_SAMPLES), rel=0.1)
    nothing = Linear()
    without = [replace(one, step=nothing, text_encoders=0) for one in (shown, decoded)]
    few, all_ = (one.rollout(64) - one.rollout(SHOWN_SAMPLES) for one in without)
    assert few == 0
    assert all_ == pytest.approx(60 * decoded.decode.per_item)


def test_what_is_held_is_counted_without_computing(tiny_families):
    folder, config = Path(tiny_families["flux"]), config_of("flux")
    held = memory_of(config, folder, computes=False)
    nothing = Linear()
    assert held == replace(memory_of(config, folder), step=nothing, decode=nothing, pack=nothing)
    assert nothing(6) == 0


@pytest.mark.ci_but_one
@pytest.mark.parametrize("kernel", FAMILY_ROWS["flux"].attention)
def test_any_kernel_of_attention_counts_as_a_fused_one(tiny_families, kernel):
    folder = Path(tiny_families["flux"])
    one = {"rollout": {"fragment_size": 1}, "train": {"pack_size": 1}}
    fused = config_of("flux", **one)
    chosen = config_of("flux", model={"attention": kernel}, **one)
    assert memory_of(chosen, folder) == memory_of(fused, folder)


def held(config: RunConfig, folder: Path) -> Memory:
    """What is there all the time: versions do not hang on what is computed."""
    return memory_of(config, folder, computes=False)


def test_versions_by_hand(tiny_families):
    """Adapters lie side by side on the device, copies of all weights in its dtype on its host."""
    folder = Path(tiny_families["flux"])
    stale = {"layout": "tcss", "max_stale_share": 1.0, "max_staleness": 1}
    lora, whole = (
        held(config_of("flux", train={"lora": lora}, schedule=stale), folder)
        for lora in ({"rank": 3}, None)
    )
    assert lora.adapters == 3 * lora.gradient_sum
    assert lora.versions == 0
    assert whole.versions == 2 * whole.gradient_sum == 2 * whole.weights
    half = held(
        config_of("flux", model={"dtype": "bfloat16"}, train={"lora": None}, schedule=stale), folder
    )
    assert half.versions == 2 * half.weights == whole.versions / 2
    half = held(
        config_of("flux", model={"dtype": "bfloat16"}, train={"lora": {"rank": 3}}, schedule=stale),
        folder,
    )
    assert half.gradient_sum == lora.gradient_sum
    assert half.adapters == lora.adapters / 2


def test_one_more_version_is_on_the_host_where_deltas_are_of_it(tiny_families):
    """None more where what the iteration before ended with is held in any case."""
    folder = Path(tiny_families["flux"])
    stale = {"layout": "tcss", "max_stale_share": 1.0, "max_staleness": 2}
    found = {
        (push, num_older, updates): held(
            config_of(
                "flux",
                train={"lora": None, "updates_per_iteration": updates},
                schedule={**schedule, "push": push},
            ),
            folder,
        ).versions
        for num_older, schedule in ((0, {}), (2, stale))
        for push in ("dense", "delta")
        for updates in (1, 2)
    }
    one = found["dense", 0, 1]
    assert found["delta", 0, 1] == found["dense", 0, 2] == 2 * one
    assert found["delta", 0, 2] == 3 * one
    assert found["dense", 2, 1] == found["delta", 2, 1] == 3 * one
    assert found["dense", 2, 2] == found["delta", 2, 2] == 4 * one


@pytest.mark.parametrize(
    ("decay", "push", "updates", "expected"),
    [
        ("none", "dense", 1, 1),
        ("none", "dense", 2, 3),  # what the iteration began with, and beside the newest it again
        ("ramp", "dense", 1, 2),
        ("ramp", "dense", 2, 5),
        ("ramp", "delta", 1, 4),
    ],
)
def test_policies_beside_a_version_count_too(tiny_families, decay, push, updates, expected):
    folder = Path(tiny_families["flux"])
    found = held(
        config_of(
            "flux",
            algorithm={"type": "diffusion_nft", "old_policy_decay": decay},
            train={"lora": None, "updates_per_iteration": updates},
            schedule={"push": push},
        ),
        folder,
    )
    assert found.versions == expected * found.gradient_sum


# --- what fits --------------------------------------------------------------------------------


MEMORY = Memory(
    weights=24 * GB,
    adapters=GB,
    text_encoders=10 * GB,
    vae=GB,
    step=Linear(fixed=0, per_item=GB),
    decode=Linear(fixed=0, per_item=2 * GB),
    pack=Linear(fixed=GB, per_item=4 * GB),
    gradient_sum=2 * GB,
    versions=0,
    state=10 * GB,
    step_copies=20 * GB,
    offload=frozenset(),
)


def test_devices_by_hand():
    resident = 24 * GB + GB + CONTEXT_BYTES
    assert MEMORY.rollout(1) == resident + 11 * GB + 2 * GB
    assert MEMORY.rollout(3) == resident + 11 * GB + 6 * GB
    assert MEMORY.trainer(2) == resident + 2 * GB + 9 * GB
    assert MEMORY.both(1, 2) == resident + 2 * GB + 11 * GB + 9 * GB
    assert MEMORY.host == 30 * GB
    waiting = replace(MEMORY, offload=frozenset({"text_encoders", "vae"}))
    assert waiting.rollout(1) == resident + 10 * GB  # while prompts are embedded
    assert waiting.rollout(6) == resident + 13 * GB  # while samples are decoded
    aside = replace(MEMORY, offload=frozenset({"text_encoders", "vae", "transformer"}))
    assert aside.rollout(1) == resident + 3 * GB  # a sample decoded: the encoders are not there
    assert replace(aside, text_encoders=40 * GB).rollout(1) == CONTEXT_BYTES + 40 * GB
    assert waiting.both(1, 2) == resident + 2 * GB + 10 * GB
    low = replace(MEMORY, low_precision=12 * GB)
    assert low.rollout(3) == MEMORY.rollout(3) + 12 * GB
    assert low.both(1, 2) == MEMORY.both(1, 2) + 12 * GB
    assert low.trainer(2) == MEMORY.trainer(2)
    assert replace(aside, low_precision=12 * GB).rollout(1) == aside.rollout(1) + 12 * GB


@pytest.mark.parametrize(
    ("card", "does"),
    [(24, "-"), (32, "-"), (34, "trains"), (40, "generates or trains"), (48, "both")],
)
def test_what_a_card_can_do(card, does):
    assert Needs(8, 8, 8, MEMORY).on_card(card) == does


def test_size_prints_memory(tiny_families, capsys):
    arguments = ["size", "shapes", "--model.path", tiny_families["flux"], "--memory"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    for quantity, _ in quantities(Needs(8, 8, 8, MEMORY)):
        assert quantity in shown
    assert run([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "shapes"
    assert row["trainer"] > row["parts"]["weights"] > 0
    assert run([*arguments, "--markdown"]) == 0
    heading, _, cells = capsys.readouterr().out.splitlines()
    assert heading.count("|") == cells.count("|")


@pytest.mark.ci
def test_the_page_shows_what_is_counted(capsys):
    """docs/sizes.md is what `digen size --memory --markdown` prints."""
    section = (ROOT / "docs/sizes.md").read_text().partition("## Memory")[2]
    lines = section.partition("**Gangs.**")[0].splitlines()
    names = [line.split(" | ")[0][2:] for line in lines if line.startswith("| ")][2:]
    assert names == [path.stem for path in recipe_files()]
    assert run(["size", "flow_grpo_sd3_fast_nocfg", "--memory", "--markdown"]) == 0
    heading, _, cells = capsys.readouterr().out.splitlines()
    assert heading in lines
    assert cells in lines
