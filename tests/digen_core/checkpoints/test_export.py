"""All weights of a checkpoint as a diffusers folder: the same bits as ever, in little memory."""

import gc
import json
import tracemalloc

import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from safetensors import safe_open

from digen_core.checkpoints.average import kept_average
from digen_core.checkpoints.export import save_transformer
from digen_core.checkpoints.manifest import DamagedError
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.tiny.flux import build_tiny_flux
from digen_core.models.trainable import make_trainable, trainable_parameters
from digen_core.training.train_state import initial_state
from digen_core.transport.arrays import to_arrays
from digen_core.transport.files import folder_written_whole
from support.checkpoints import names_in, position_of
from support.dealt_state import written
from support.families import FAMILIES, load_tiny
from support.gang_memory import allocated

SIZES = pytest.mark.parametrize("size", [1, 2, 3])
SMALL = 30_000  # bytes of a file: less than a tiny transformer has


@pytest.fixture(scope="module")
def wide():
    """A transformer of many million parameters, beside whose bytes Python's own are few."""
    pipeline = build_tiny_flux(width=256, num_layers=4, num_single_layers=12)
    return pipeline.transformer.to(torch.bfloat16)


def policy_of(folder, family, dtype):
    policy = load_tiny(folder, family, dtype, TRAINER_PARTS)
    make_trainable(policy, None)
    return policy


def masters_of(transformer, seed=0, dtype=np.float32):
    """Return masters that no half precision holds."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=tuple(parameter.shape)).astype(dtype)
        for name, parameter in transformer.named_parameters()
    }


def written_with(folder, weights, size, average=None):
    """Return a checkpoint that a gang wrote."""
    state = initial_state(weights)
    if average is not None:
        state.ema = average
    return written(folder, size, state, position_of(0))


def exported(transformer, checkpoint, folder, **settings):
    with folder_written_whole(folder) as unfinished, kept_average(checkpoint) as weights:
        save_transformer(transformer, unfinished, weights, **settings)
    return folder


def content_of(folder):
    """Return what a folder's files of weights hold, by name: dtype, shape and bytes."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118 - it is no dict
                value = file.get_tensor(name)
                bits = value.reshape(-1).view(torch.uint8).numpy().tobytes()
                assert name not in found
                found[name] = value.dtype, tuple(value.shape), bits
    return found


@torch.no_grad()
def saved_by_diffusers(transformer, weights, folder, **settings):
    """Have the transformer save itself with other weights, whole."""
    before = {name: value.clone() for name, value in transformer.state_dict().items()}
    for name, parameter in transformer.named_parameters():
        parameter.copy_(torch.from_numpy(weights[name]))
    transformer.save_pretrained(folder, **settings)
    transformer.load_state_dict(before)
    return folder


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("family", "size", "dtype"),
    [
        # Families have other names and shapes; how files are cut does not hang on them.
        pytest.param(
            *(family, size, dtype),
            marks=[pytest.mark.nightly] * (family != "flux" and (size, dtype) != (2, "bfloat16")),
        )
        for family in FAMILIES
        for size in (1, 2, 3)
        for dtype in ("float32", "bfloat16")
    ],
)
def test_it_is_what_diffusers_saves_of_the_same_weights(
    tiny_families, tmp_path, size, family, dtype
):
    transformer = policy_of(tiny_families[family], family, dtype).transformer
    weights, average = masters_of(transformer), masters_of(transformer, seed=1)
    checkpoint = written_with(tmp_path / "kept", weights, size, average)
    expected = saved_by_diffusers(transformer, average, tmp_path / "expected")
    for folder in (
        exported(transformer, checkpoint, tmp_path / "one"),
        exported(transformer, checkpoint, tmp_path / "many", shard_bytes=SMALL),
    ):
        assert content_of(folder) == content_of(expected)
        assert (folder / "config.json").read_text() == (expected / "config.json").read_text()
    assert names_in(tmp_path / "one") == ["config.json", "diffusion_pytorch_model.safetensors"]
    assert len(names_in(tmp_path / "many")) > 4
    read = type(transformer).from_pretrained(tmp_path / "many").state_dict()
    assert read.keys() == transformer.state_dict().keys()


def test_many_files_are_laid_out_as_diffusers_does(tiny_families, tmp_path):
    transformer = policy_of(tiny_families["flux"], "flux", "bfloat16").transformer
    weights = masters_of(transformer)
    checkpoint = written_with(tmp_path / "kept", weights, 2)
    folder = exported(transformer, checkpoint, tmp_path / "found", shard_bytes=SMALL)
    expected = saved_by_diffusers(transformer, weights, tmp_path / "like", max_shard_size=SMALL)
    assert names_in(folder) == names_in(expected)
    index = "diffusion_pytorch_model.safetensors.index.json"
    assert json.loads((folder / index).read_text()) == json.loads((expected / index).read_text())
    found = FluxTransformer2DModel.from_pretrained(folder, dtype=torch.bfloat16)
    for name, value in found.named_parameters():
        assert torch.equal(value, torch.from_numpy(weights[name]).bfloat16()), name


def peak_of(work):
    """Return the most bytes that NumPy, Python and torch's allocator gave out while it worked."""
    gc.collect()
    tracemalloc.start()
    try:
        return allocated(work) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=[pytest.mark.nightly] * (size != 2)) for size in (1, 2, 3)]
)
def test_one_files_weights_are_in_memory_at_once(wide, tmp_path, size):
    """And some megabytes: a parameter's masters, and what its fingerprint takes."""
    whole = sum(parameter.nbytes for parameter in wide.parameters())
    checkpoint = written_with(tmp_path / "kept", masters_of(wide), size)

    def peak(num_files):
        size = whole // num_files
        return peak_of(lambda: exported(wide, checkpoint, tmp_path / "out", shard_bytes=size))

    assert peak(1) > whole
    assert whole / 10 < peak(10) < whole / 3
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 9


@SIZES
def test_a_checkpoint_that_is_damaged_is_not_exported(tiny_families, tmp_path, size):
    """By one bit of the weights, in the last file that is read; what was there before stays."""
    transformer = policy_of(tiny_families["flux"], "flux", "float32").transformer
    checkpoint = written_with(tmp_path / "kept", masters_of(transformer), size)
    exported(transformer, checkpoint, tmp_path / "out")
    before = content_of(tmp_path / "out")
    file = sorted(checkpoint.glob("state*.safetensors"))[-1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # weights are the last part
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="the content of weights does not have"):
        exported(transformer, checkpoint, tmp_path / "out")
    assert content_of(tmp_path / "out") == before
    assert names_in(tmp_path) == ["kept", "out"]


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
def test_a_number_that_the_model_cannot_hold_leaves_nothing(tiny_families, tmp_path, number):
    transformer = policy_of(tiny_families["flux"], "flux", "float16").transformer
    weights = masters_of(transformer)
    list(weights.values())[-1].flat[0] = number
    checkpoint = written_with(tmp_path / "kept", weights, 1)
    with pytest.raises(FloatingPointError, match="it has NaN or more than"):
        exported(transformer, checkpoint, tmp_path / "out", shard_bytes=SMALL)
    assert names_in(tmp_path) == ["kept"]


def test_the_folder_of_an_earlier_export_is_replaced(tiny_families, tmp_path):
    """With files that the new one does not have, and after a process that was killed."""
    policy = policy_of(tiny_families["flux"], "flux", "float32")
    weights = to_arrays(trainable_parameters(policy))
    checkpoint = written_with(tmp_path / "kept", weights, 1)
    exported(policy.transformer, checkpoint, tmp_path / "out", shard_bytes=SMALL)
    for left in (".out.unfinished", ".out.removed"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "half.safetensors").write_bytes(b"half")
    folder = exported(policy.transformer, checkpoint, tmp_path / "out")
    assert names_in(folder) == ["config.json", "diffusion_pytorch_model.safetensors"]
    assert names_in(tmp_path) == ["kept", "out"]
