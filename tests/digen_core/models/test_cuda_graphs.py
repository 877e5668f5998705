"""CUDA graphs of forward passes: what they compute, when they are captured, what cannot be.

Here a capture is one of tensor operations: like a GPU's it takes no other way than that of the
first numbers, and reads weights where they lay.
"""

from contextlib import contextmanager
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.models.loading import prepare
from digen_core.models.offload import off_device
from digen_core.models.pipeline import cuda_graphs
from digen_core.models.pipeline.cuda_graphs import GraphedTransformer, Graphs, require_graphs
from digen_core.models.trainable import set_weights
from digen_core.models.versions import versions_of
from support.captures import computed_again, taped
from support.edits import write_edit_2511
from support.families import DISTILLED, FAMILIES, MODELS, OF_KIND, family_of, load_tiny, sliced
from support.tiny_policies import moved_weights


@pytest.fixture
def captured(monkeypatch) -> list[object]:
    """The passes that are captured, as a GPU would."""
    found = []

    def capture(run):
        found.append(run)
        return taped(run)

    monkeypatch.setattr(cuda_graphs, "DeviceCapture", lambda device: capture)
    return found


def prepared(folder, model, *, dtype="float64", graphs=True, lora=True, compiles=False, **rollout):
    policy = load_tiny(folder, model, dtype)
    settings = {"family": family_of(model), "path": folder, "dtype": dtype, "device": "cpu"}
    tree = {
        "model": settings | OF_KIND.get(model, {}) | {"compile": compiles},
        "rollout": {"cuda_graphs": graphs, "num_steps": 4, **rollout},
        "train": {"lora": {"rank": 4} if lora else None},
    }
    if rollout:
        tree["algorithm"] = {"correction": "recompute"}
    prepare(policy, RunConfig.model_validate(tree))
    return policy


@torch.no_grad()
def sampled(policy, count=2, seed=0, sigma=0.5, condition=None, precision="float8"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *policy.latent_shape, generator=generator, dtype=torch.float64)
    if condition is None:
        condition = noise_condition(policy, count, seed)
    with policy.sampling(precision):
        return policy.velocity(x.to(policy.latent_dtype), torch.full((count,), sigma), condition)


def noise_condition(policy, count, seed=0):
    """Texts of noise, of which none is padded."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator).to(value.dtype)
        if value.is_floating_point()
        else torch.ones_like(value)
        for name, value in policy.blank_condition(count).items()
    }


@pytest.mark.ci
@pytest.mark.parametrize("model", sliced([*MODELS, DISTILLED], often=["wan"]))
def test_velocities_are_those_of_the_pass(tiny_families, captured, model):
    """Of other noise, levels, texts, weights, adapters and batches, to the last bit."""
    plain, graphed = (prepared(tiny_families[model], model, graphs=on) for on in (False, True))

    def compare(num_captured, **given):
        assert torch.equal(sampled(graphed, **given), sampled(plain, **given))
        assert len(captured) == num_captured

    experts = set()
    for seed, sigma in ((0, 0.5), (1, 0.5), (2, 0.95), (3, 0.95), (2, 0.1)):
        experts.add(sigma >= getattr(plain.transformer, "boundary", 0))
        compare(len(experts), seed=seed, sigma=sigma)
    start = len(captured)
    weights = [moved_weights(plain, seed, scale=0.1) for seed in range(3)]
    for policy in (plain, graphed):
        set_weights(policy, weights[0])
    compare(start, seed=4)
    compare(start + 1, count=1)
    compare(start + 1, count=2)
    stores = [versions_of(policy) for policy in (plain, graphed)]
    for version in (1, 2):
        for store in stores:
            store.hold(version, weights[version])
    for version, expected in ((1, 2), (2, 3), (1, 3), (2, 3)):
        for store in stores:
            store.activate(version)
        compare(start + expected, seed=version)
    with torch.no_grad():  # training and evaluations run the pass itself
        x = torch.zeros(3, *graphed.latent_shape, dtype=torch.float64)
        graphed.velocity(x, torch.full((3,), 0.5), graphed.blank_condition(3))
    assert len(captured) == start + 3


@pytest.mark.ci_but_one
@pytest.mark.parametrize("precision", ["model", "float8"])
def test_all_weights_are_read_as_they_are(tiny_families, captured, precision):
    """Also those that rollouts have in float8, which are rounded anew after a push."""
    plain, graphed = (
        prepared(tiny_families["sd3"], "sd3", graphs=on, lora=False, precision=precision)
        for on in (False, True)
    )
    for seed in range(3):
        weights = moved_weights(plain, seed, scale=0.01)
        for policy in (plain, graphed):
            set_weights(policy, weights)
        assert torch.equal(sampled(graphed, seed=seed), sampled(plain, seed=seed))
    assert len(captured) == 1


@pytest.mark.ci
def test_candidates_in_float8_have_graphs_of_their_own(tiny_families, captured):
    """Of the same shapes as those of samples: neither is launched in place of the other."""
    screening = {"candidates": 32, "precision": "float8"}
    plain, graphed = (
        prepared(tiny_families["sd3"], "sd3", graphs=on, screening=screening)
        for on in (False, True)
    )
    for precision in ("float8", "model", "float8", "model"):
        expected = sampled(plain, precision=precision)
        assert torch.equal(sampled(graphed, precision=precision), expected)
    assert len(captured) == 2
    assert not torch.equal(sampled(graphed, precision="float8"), expected)


@pytest.mark.ci
def test_weights_that_lie_elsewhere_are_captured_again(tiny_families, captured):
    graphed = prepared(tiny_families["flux"], "flux")
    expected = sampled(graphed)
    with off_device([graphed.transformer], torch.device("cpu")):
        pass
    plain = prepared(tiny_families["flux"], "flux", graphs=False)
    weights = moved_weights(plain, 1, scale=0.1)
    for policy in (plain, graphed):
        set_weights(policy, weights)
    found = sampled(graphed)
    assert torch.equal(found, sampled(plain))
    assert not torch.equal(found, expected)
    assert len(captured) == 2
    assert torch.equal(sampled(graphed), found)
    assert len(captured) == 2


@pytest.mark.nightly
def test_compiled_blocks_stay_compiled(tiny_families, monkeypatch):
    """In what is captured, in passes of other shapes, and in those of training after that."""
    calls = []

    def backend(module, inputs):
        def computed(*arguments):
            calls.append(1)
            return module.forward(*arguments)

        return computed

    compile_block = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda block, **_: compile_block(block, backend=backend)
    )
    monkeypatch.setattr(cuda_graphs, "DeviceCapture", lambda device: computed_again)
    monkeypatch.setattr("digen_core.models.compiled.require_compiler", lambda device: None)
    policy = prepared(tiny_families["sd3"], "sd3", compiles=True)
    plain = prepared(tiny_families["sd3"], "sd3", graphs=False)
    blocks = len(policy.transformer.transformer_blocks)

    def compare(expected, **given):
        before = len(calls)
        found = sampled(policy, **given)
        assert len(calls) == before + expected * blocks
        torch.testing.assert_close(found, sampled(plain, **given), rtol=1e-9, atol=1e-9)

    compare(2)  # itself, and captured
    compare(1, seed=1)
    compare(2, count=1)
    policy.graphed[0].is_on = False
    before = len(calls)
    x = torch.zeros(1, *policy.latent_shape, dtype=torch.float64)
    policy.velocity(x, torch.full((1,), 0.5), noise_condition(policy, 1))
    assert len(calls) == before + blocks


@pytest.mark.ci
def test_text_that_is_masked_is_another_pass(tiny_families, captured):
    """HunyuanVideo's blocks mask it, or not, though the arguments look alike."""
    model = "hunyuan_video"
    plain, graphed = (prepared(tiny_families[model], model, graphs=on) for on in (False, True))
    masked = noise_condition(plain, 2)
    masked["mask"] = torch.arange(masked["mask"].shape[1]).expand(2, -1) < 3
    for number in (1, 2):
        whole = {name: value for name, value in masked.items() if name != "mask"}
        found = [sampled(graphed, condition=own) for own in (masked, whole)]
        assert not torch.equal(*found)
        for velocity, own in zip(found, (masked, whole), strict=True):
            assert torch.equal(velocity, sampled(plain, condition=own))
        assert len(captured) == 2, number


class Told(TorchFunctionMode):
    """The functions that make tensors of the host's numbers for a device; on meta no copy shows."""

    def __init__(self, found):
        super().__init__()
        self._found = found

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        is_made = function in (torch.tensor, torch.as_tensor)
        if is_made and result is not arguments[0] and result.device.type != "cpu":
            self._found.append(function.__name__)
        return result


class OnTheHost(TorchDispatchMode):
    """The operations of a body for which a device has to wait for the host, or it for the device.

    The body computes on the meta device, and has no numbers. A number of its own that the host
    passes to a kernel is captured with it.
    """

    def __init__(self):
        super().__init__()
        self.found = []
        self._told = Told(self.found)

    def __enter__(self):
        self._told.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._told.__exit__(*error)

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        tensors = pytree.tree_leaves((arguments, keywords, result))
        tensors = [own for own in tensors if isinstance(own, torch.Tensor)]
        places = {own.device.type for own in tensors if own.ndim or "copy" in str(function)}
        if len(places) > 1:
            self.found.append(str(function))
        return result


@pytest.mark.parametrize("model", sliced([*MODELS, DISTILLED]))
def test_a_pass_of_every_model_can_be_captured(tiny_families, model):
    assert asked_of_the_host(prepared(tiny_families[model], model, graphs=False)) == []


def test_a_pass_that_shows_sources_without_noise_can_be_captured(tmp_path):
    folder = write_edit_2511(tmp_path / "2511")
    assert asked_of_the_host(prepared(folder, "qwen_image-edit-plus", graphs=False)) == []


def asked_of_the_host(policy) -> list[str]:
    """What the second pass of a policy does there: the first puts tables where the device is."""
    condition = policy.blank_condition(2)
    for own in policy.transformers:
        own.to("meta")
    policy.device = torch.device("meta")
    meta = {name: value.to("meta") for name, value in condition.items()}
    x = torch.empty(2, *policy.latent_shape, device="meta")
    looks = []

    def look(forward):
        def looked(*arguments, **keywords):
            looks.append(OnTheHost())
            with looks[-1]:
                return forward(*arguments, **keywords)

        return looked

    for own in policy.transformers:
        own.forward = look(own.forward)
    with torch.no_grad():
        for _ in range(2):
            policy.velocity(x, torch.empty(2, device="meta"), meta)
    assert len(looks) == 2
    return looks[1].found


def test_what_makes_a_device_wait_is_seen():
    with OnTheHost() as look:
        torch.ones(3).to("meta")
        torch.tensor([1, 2], device="meta")
        torch.as_tensor(3, device="meta")
    assert look.found == ["aten._to_copy.default", "tensor", "as_tensor"]


# --- which are kept ---------------------------------------------------------------------------


class Doubling(torch.nn.Module):
    """Twice its input, and how often that was computed."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x, *, scale=2.0):
        self.count += 1
        return (scale * x,)


@pytest.fixture
def graphed_doubling(monkeypatch):
    """Return a function that makes such a module, and what stands for its ``forward``."""

    def make(capture=taped, mode=lambda: None):
        monkeypatch.setattr(cuda_graphs, "DeviceCapture", lambda device: capture)
        module = Doubling()
        graphed = GraphedTransformer(module, mode, Graphs(torch.device("cpu")))
        graphed.is_on = True
        return module, graphed

    return make


def test_where_there_are_too_many_all_go(graphed_doubling, monkeypatch):
    """Scratch memory of one is given up by torch when another goes."""
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    module, _ = graphed_doubling()
    for size, is_new in ((1, True), (2, True), (1, False), (3, True), (1, True), (3, False)):
        before = module.count
        x = torch.rand(size)
        assert torch.equal(module(x)[0], 2 * x)
        assert (module.count > before) == is_new, size


@settings(max_examples=30, deadline=None)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([(2,), (3,), (2, 3)]),
            st.sampled_from([1.0, 2.0]),
            st.sampled_from([torch.float32, torch.float64]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_each_call_gets_its_own_result(calls):
    """Whatever came before; a result stays what it is when the graph is launched again."""
    with patch.object(cuda_graphs, "DeviceCapture", lambda device: taped):
        module = Doubling()
        graphed = GraphedTransformer(module, lambda: None, Graphs(torch.device("cpu")))
    found = []
    for index, (shape, scale, dtype, is_on) in enumerate(calls):
        graphed.is_on = is_on
        x = torch.full(shape, float(index), dtype=dtype)
        found.append((module(x, scale=scale)[0], scale * x))
    for result, expected in found:
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


def test_what_a_pass_depends_on_beside_its_arguments_is_told_apart(graphed_doubling):
    modes = iter("aabb")
    module, _ = graphed_doubling(mode=lambda: next(modes))
    counts = []
    for _ in range(4):
        module(torch.ones(1))
        counts.append(module.count)
    assert counts[0] == counts[1] < counts[2] == counts[3]


class Ending:
    """A capture that fails at its end, too, as that of CUDA does."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        raise RuntimeError("operation failed due to a previous error during capture")


def failing_with(error):
    def capture(run):
        with Ending():
            raise error

    return capture


def test_what_cannot_be_captured_is_told_in_a_line(graphed_doubling):
    error = RuntimeError("operation not permitted when stream is capturing\nmore")
    module, _ = graphed_doubling(failing_with(error))
    with pytest.raises(ConfigError, match=r"captured: operation not permitted .*; set it to false"):
        module(torch.ones(1))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no more"), RuntimeError("CUDA error: out of memory")],
    ids=["torch's", "the driver's"],
)
def test_memory_that_runs_out_is_no_fault_of_the_model(graphed_doubling, error):
    """All graphs go: there is more of it for fewer samples."""
    captures = iter([taped, failing_with(error), taped])
    module, _ = graphed_doubling(lambda run: next(captures)(run))
    module(torch.ones(1))
    with pytest.raises(torch.OutOfMemoryError):
        module(torch.ones(2))
    before = module.count
    module(torch.ones(1))
    assert module.count > before


class StandIn:
    """What torch.cuda does for a capture, told in order."""

    def __init__(self, monkeypatch, *, fails=False):
        self.told, self._fails = [], fails
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self.told.append(name))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"of {device}")
        monkeypatch.setattr(torch.cuda, "stream", self.stream)

    @contextmanager
    def stream(self, stream):
        self.told.append(f"stream {stream}")
        try:
            yield
        finally:
            self.told.append("stream left")

    def capture_begin(self, pool, capture_error_mode):
        self.told.append(f"begin {pool} {capture_error_mode}")

    def capture_end(self):
        self.told.append("end")
        if self._fails:
            raise RuntimeError("operation failed due to a previous error during capture")

    def pool(self):
        return 1, 2

    def replay(self):
        self.told.append("replay")


def test_a_capture_is_on_a_stream_of_its_own_and_shares_a_pool(monkeypatch):
    graphs = StandIn(monkeypatch)
    capture = cuda_graphs.DeviceCapture(torch.device("cuda"))
    for pool in (None, (1, 2)):
        graphs.told.clear()
        result, launch = capture(lambda: graphs.told.append("run") or "result")
        assert result == "result"
        launch()
        before, begin = (
            ["synchronize", "empty_cache", "stream of cuda"],
            f"begin {pool} thread_local",
        )
        assert graphs.told == [*before, begin, "run", "end", "stream left", "replay"]


def test_a_capture_that_fails_leaves_its_stream(monkeypatch):
    graphs = StandIn(monkeypatch, fails=True)

    def run():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="previous error") as failed:
        cuda_graphs.DeviceCapture(torch.device("cuda"))(run)
    assert "not permitted" in str(failed.value.__context__)
    assert graphs.told[-2:] == ["end", "stream left"]


# --- where there are none ---------------------------------------------------------------------


def test_a_cpu_has_none(tiny_families):
    with pytest.raises(ConfigError, match=r"takes a GPU, but samples would be .* on a cpu device"):
        require_graphs(torch.device("cpu"))
    with pytest.raises(ConfigError, match="takes a GPU"):
        sampled(prepared(tiny_families["sd3"], "sd3"))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_key_there_are_none(tiny_families, family):
    assert prepared(tiny_families[family], family, graphs=False).graphed == ()


@pytest.mark.parametrize(
    ("key", "value"), [("context_parallel", 2), ("shard_weights", True), ("stages", 2)]
)
def test_they_are_not_for_members_that_compute_together(key, value):
    tree = {"rollout": {"cuda_graphs": True}, "parallel": {key: value}}
    with pytest.raises(ValueError, match=f"cuda_graphs is true, but with parallel.{key} "):
        RunConfig.model_validate(tree)
