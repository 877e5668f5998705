"""What is trained of every family: replay of a rollout, gradients, adapters and what is saved."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from peft.tuners.lora import LoraLayer

from digen_core.algorithms import ALGORITHMS
from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.control.protocol import Fragment
from digen_core.errors import ConfigError
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import make_trainable, set_weights, trainable_parameters
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from digen_core.rollout.steps import steps_of_iteration
from digen_core.training.gradient_sum import GradientSum, PackGradient, pack_gradient
from digen_core.training.pairs import gather_pairs
from digen_core.transport.arrays import to_array, to_arrays
from digen_core.transport.segment import Segment
from support.edits import condition_of
from support.families import EDITED, EDITORS, FAMILIES, MODELS, family_of, load_tiny, sliced
from support.packs import make_packs
from support.stock import load_adapters, saved_transformers, stock
from support.tiny_policies import moved_weights

pytestmark = pytest.mark.slow

TEXT_STREAM = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
PUBLISHED = {  # FlowGRPO's targets beside the default ones
    "flux": (
        *TEXT_STREAM,
        *("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
    ),
    "flux2": (
        *TEXT_STREAM,
        *("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out"),
        *("to_qkv_mlp_proj", *(f"single_transformer_blocks.{n}.attn.to_out" for n in range(2))),
    ),
    "sd3": TEXT_STREAM,
    "qwen_image": (
        *TEXT_STREAM,
        *("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
    ),
    "qwen_image21": tuple(f"img_mlp.{name}" for name in ("proj", "gate_layer", "out")),
    "z_image": tuple(f"feed_forward.w{number}" for number in (1, 2, 3)),  # DiffSynth-Studio's
    "sana": (),
    "wan": (),
    "hunyuan_video": TEXT_STREAM,
    "ltx2": ("ff.net.0.proj", "ff.net.2"),
    "hunyuan_video15": TEXT_STREAM,
}
BLOCKS = dict.fromkeys(FAMILIES, "transformer_blocks") | {"wan": "blocks", "z_image": "layers"}
LORA = LoraConfig(rank=3, alpha=10)  # a strength that is lost if alpha is
FRAGMENT = Fragment(iteration=0, group=0, index=0, first_sample=0, num_samples=4)
PROMPT = "a red circle"


@pytest.fixture(params=sliced(MODELS))
def family(request) -> str:
    return request.param


def trained_policy(folder: str, family: str, dtype: str = "float32", lora=LORA):
    policy = load_tiny(folder, family, dtype)
    make_trainable(policy, lora)
    set_weights(policy, moved_weights(policy, scale=0.02 if lora is None else 0.1))
    return policy


def config_of(family: str, dtype: str = "float32", transition="flow_sde", **algorithm) -> RunConfig:
    """An update of one group: 4 samples of 3 steps."""
    shape = {"prompts_per_iteration": 1, "group_size": 4, "fragment_size": 4, "num_steps": 3}
    return RunConfig.model_validate(
        {
            "model": {"family": family_of(family), "dtype": dtype},
            "prompts": EDITED if family in EDITORS else {},
            "rollout": {**shape, "transition": transition},
            "algorithm": algorithm,
        }
    )


def sampled(policy, config: RunConfig) -> Segment:
    """A fragment as a denoise task returns it."""
    x = initial_latent(policy, seed=0, group=(0, 0), samples=FRAGMENT.samples)
    rows = Rows.of((0, 0), FRAGMENT.samples)
    done = list(
        denoise(
            policy,
            x,
            rows.conditions({(0, 0): condition_of(policy, [PROMPT])}),
            policy.sigmas(config.rollout.num_steps),
            steps=range(config.rollout.num_steps),
            noisy_steps=steps_of_iteration(config, 0).noisy,
            config=config.rollout,
            seed=0,
            rows=rows,
        )
    )
    latents = np.stack([to_array(x), *(to_array(step.x_next) for step in done)])
    logprobs = {step.step: to_array(step.logprob) for step in done if step.logprob is not None}
    sigmas = to_array(policy.sigmas(config.rollout.num_steps))
    return Segment(FRAGMENT, 0, latents, logprobs, version=0, sigmas=sigmas, device="rollout-0")


def replayed(policy, config: RunConfig, pack_size: int) -> list[PackGradient]:
    segment = sampled(policy, config)
    trained = steps_of_iteration(config, 0).trained
    return [
        pack_gradient(
            policy,
            gather_pairs(
                pack,
                [segment],
                {0: to_arrays(condition_of(policy, [PROMPT]))},
                {0: np.array([1.5, -0.5, -2.0, 1.0])},
                policy.device,
                config,
                version=0,
                trained_from=0,
                trained_steps=trained,
            ),
            config,
        )
        for pack in make_packs([FRAGMENT], trained, iteration=0, pack_size=pack_size)
    ]


REPLAYS = [
    *((family, "bfloat16", "flow_sde") for family in MODELS),
    *sliced(EDITORS, "bfloat16", "flow_sde"),
    *sliced((*MODELS, *EDITORS), "float32", "flow_sde"),
    *sliced((*MODELS, *EDITORS), "bfloat16", "dance"),
    *sliced((*MODELS, *EDITORS), "float32", "dance"),
]


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("family", "dtype", "transition"), REPLAYS)
def test_replay_in_the_batch_of_the_rollout_is_exact(tiny_families, family, dtype, transition):
    policy = trained_policy(tiny_families[family], family, dtype)
    for result in replayed(policy, config_of(family, dtype, transition), 4):
        assert result.metrics.max_log_ratio == 0


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("family", "pack_size"),
    [
        *sliced(MODELS, 3),
        *sliced(MODELS, 1),
        *sliced(MODELS, 8),
        *(pytest.param(family, 3, marks=pytest.mark.nightly) for family in EDITORS),
    ],
)
def test_replay_in_other_batches_is_exact_but_for_rounding(tiny_families, family, pack_size):
    policy = trained_policy(tiny_families[family], family)
    for result in replayed(policy, config_of(family), pack_size):
        assert result.metrics.max_log_ratio <= 1e-6


EVERYWHERE = "flow_grpo"
PAIRS = [
    pytest.param(
        family,
        algorithm,
        id=f"{family}-{algorithm}",
        marks=[] if family == "flux" or algorithm == EVERYWHERE else [pytest.mark.nightly],
    )
    for family in FAMILIES
    for algorithm in ALGORITHMS
]
"""All with all, of which each change tries all algorithms on one family, and one on all."""


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("family", "algorithm"), PAIRS)
def test_every_algorithm_trains_every_family(tiny_families, family, algorithm):
    """Replay is exact, and packs of any size add up to one gradient."""
    policy = trained_policy(tiny_families[family], family)
    few = {
        "mix_grpo": {"window_size": 1},
        "awm": {"num_levels": 2, "first_level": 0},
        "dgpo": {"num_levels": 2},
        "dpo": {"num_levels": 2},
    }
    config = config_of(family, type=algorithm, **few.get(algorithm, {}), kl_coefficient=0.1)
    num_pairs = 4 * len(steps_of_iteration(config, 0).trained)
    (whole,) = replayed(policy, config, num_pairs)
    total = GradientSum()
    for index, part in enumerate(replayed(policy, config, 4)):
        assert part.metrics.max_log_ratio == 0
        total.add(index, [part])
    assert total.metrics.num_pairs == num_pairs
    assert whole.metrics.max_log_ratio <= 1e-6
    scale = np.max([float(value.abs().max()) for value in whole.gradient.values()])
    assert scale > 0
    for name, value in whole.gradient.items():
        np.testing.assert_allclose(total.gradient[name], value, rtol=0, atol=1e-4 * scale)


def test_all_adapters_learn_and_nothing_else(tiny_families, family):
    policy = trained_policy(tiny_families[family], family)
    (result,) = replayed(policy, config_of(family), 8)
    assert result.gradient.keys() == trainable_parameters(policy).keys()
    assert all("lora_" in name for name in result.gradient)
    for name, gradient in result.gradient.items():
        assert gradient.isfinite().all()
        assert gradient.any(), name


def test_every_published_target_has_an_adapter_and_the_unused_ones_are_allowed(
    tiny_families, family
):
    targets = (*LORA.targets, *PUBLISHED[family_of(family)])
    policy = trained_policy(tiny_families[family], family, lora=LoraConfig(targets=targets))
    names = trainable_parameters(policy)
    assert all(any(f".{target}.lora_A" in f".{name}" for name in names) for target in targets)
    (result,) = replayed(policy, config_of(family), 8)
    assert result.metrics.max_log_ratio <= 1e-6
    without = names.keys() - result.gradient.keys()
    # the text stream of the last block reaches no output
    assert all("transformer_blocks.1" in name for name in without)
    assert bool(without) == (family in ("qwen_image", "hunyuan_video15"))


def test_a_target_that_is_no_layer_elsewhere_is_refused_and_in_full_it_is_taken(tiny_families):
    """The first of what modulates is a layer in Z-Image's blocks, and an activation behind them."""
    target, layer = "adaLN_modulation.0", "layers.1.adaLN_modulation.0"
    policy = load_tiny(tiny_families["z_image"], "z_image", parts=TRAINER_PARTS)
    with pytest.raises(ConfigError, match=r"'all_final_layer\..*' is a SiLU; name .* in full, suc"):
        make_trainable(policy, LoraConfig(targets=("to_q", target)))
    make_trainable(policy, LoraConfig(targets=(layer,)))
    assert {name.partition(".lora_")[0] for name in trainable_parameters(policy)} == {layer}


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("family", "lora"),
    [*sliced(MODELS, LORA), *sliced(MODELS, None)],
    ids=lambda value: value if isinstance(value, str) else "lora" if value else "all",
)
def test_checkpointed_gradients_are_the_same_bit_for_bit(tiny_families, family, lora):
    policy = trained_policy(tiny_families[family], family, lora=lora)
    (kept,) = replayed(policy, config_of(family), 8)
    checkpointed = load_tiny(tiny_families[family], family)
    make_trainable(checkpointed, lora, gradient_checkpointing=True)
    set_weights(checkpointed, moved_weights(policy, scale=0))
    counted = Counter()
    for transformer in checkpointed.transformers:
        for number, block in enumerate(transformer.get_submodule(BLOCKS[family_of(family)])):
            block.register_forward_pre_hook(lambda *_, number=number: counted.update([number]))
    (again,) = replayed(checkpointed, config_of(family), 8)
    steps = config_of(family).rollout.num_steps
    # the rollout, then twice for the pack, of which each of two experts has a part
    assert set(counted.values()) == {steps + 2 * len(checkpointed.transformers)}
    assert again.metrics == kept.metrics
    assert again.gradient.keys() == kept.gradient.keys()
    for name, value in kept.gradient.items():
        np.testing.assert_array_equal(again.gradient[name], value, err_msg=name)


def lora_layers(policy):
    return [module for module in policy.transformer.modules() if isinstance(module, LoraLayer)]


@pytest.mark.parametrize("family", sliced(MODELS))
def test_adapters_of_a_half_precision_model_compute_as_its_layers_do(tiny_families, family):
    """One is of a layer that Wan keeps in float32."""
    policy = load_tiny(tiny_families[family], family, "bfloat16")
    name = {"wan": "time_embedder.linear_1"}.get(family_of(family))
    make_trainable(policy, LoraConfig(rank=3, targets=("to_q", "to_k", *filter(None, [name]))))
    seen = Counter()

    def note(kind, module, inputs, output):
        seen[kind, *(str(own.dtype)[6:] for own in (*inputs, module.weight, output))] += 1

    for layer in lora_layers(policy):
        kind = str(layer.get_base_layer().weight.dtype)[6:]
        for part in (layer.lora_A, layer.lora_B):
            part["default"].register_forward_hook(partial(note, kind))
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(2))
    with torch.no_grad():
        policy.velocity(x, torch.tensor([0.2, 0.9]), condition_of(policy, [PROMPT] * 2))
    kinds = {"bfloat16", "float32"} if name else {"bfloat16"}
    assert set(seen) == {(kind,) * 4 for kind in kinds}


@pytest.mark.ci_but_one
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", sliced(MODELS))
def test_adapters_in_half_precision_are_as_near_as_the_model(tiny_families, family, dtype):
    """To float32: the model's own rounding is much more than theirs."""
    exact, half = (trained_policy(tiny_families[family], family, own) for own in ("float32", dtype))
    x = initial_latent(exact, seed=5, group=(0, 0), samples=range(3))

    @torch.no_grad()
    def velocity_of(policy):
        sigma = torch.linspace(0.2, 0.9, 3)
        return policy.velocity(x, sigma, condition_of(policy, [PROMPT] * 3))

    masters, expected = moved_weights(exact, scale=0), velocity_of(exact)
    set_weights(half, masters)
    found = velocity_of(half)
    for layer in lora_layers(half):
        layer.lora_A.float()
        layer.lora_B.float()
    set_weights(half, masters)
    in_float32 = (velocity_of(half) - expected).norm()
    assert 0 < (found - expected).norm() < 1.6 * in_float32  # of few numbers, drawn anew each time
    set_weights(exact, {name: 0 * value for name, value in masters.items()})
    assert (velocity_of(exact) - expected).norm() > 1.5 * in_float32  # they do something


def test_saved_adapters_act_the_same_in_the_stock_pipeline(tiny_families, family, tmp_path):
    policy = trained_policy(tiny_families[family], family)
    save_adapter(policy, tmp_path)
    pipeline = stock(tiny_families[family])
    load_adapters(pipeline, tmp_path)
    (adapter,) = pipeline.transformer.peft_config.values()
    assert (adapter.r, adapter.lora_alpha) == (3, 10)
    loaded = load_tiny(tiny_families[family], family, parts=TRAINER_PARTS)
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(3))
    inputs = x, torch.linspace(0.2, 0.9, 3), policy.encode([PROMPT] * 3)
    base = loaded.velocity(*inputs)
    loaded = type(loaded)(pipeline, loaded.config, loaded.device)
    velocity = loaded.velocity(*inputs)
    assert torch.equal(velocity, policy.velocity(*inputs))
    assert not torch.equal(velocity, base)


def test_a_saved_transformer_acts_the_same(tiny_families, family, tmp_path):
    policy = trained_policy(tiny_families[family], family, lora=None)
    save_transformer(policy.transformer, tmp_path, to_arrays(trainable_parameters(policy)))
    loaded = load_tiny(tiny_families[family], family, parts=TRAINER_PARTS)
    saved = loaded.pipeline
    for part, folder in saved_transformers(saved, tmp_path).items():
        setattr(saved, part, type(getattr(saved, part)).from_pretrained(folder))
    loaded = type(loaded)(saved, loaded.config, loaded.device)
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(3))
    inputs = x, torch.linspace(0.2, 0.9, 3), policy.encode([PROMPT] * 3)
    assert torch.equal(loaded.velocity(*inputs), policy.velocity(*inputs))
