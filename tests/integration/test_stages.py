"""Devices that hold a transformer in stages: the weights of the serial loop, and whole runs."""

from collections import Counter
from dataclasses import dataclass

import pytest
from safetensors.torch import load_file

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from support.families import ROUNDED_TO_FLOAT32, family_of, frames_of
from support.gang_cases import TARGETS
from support.gang_runs import SIZES, GangCase, cluster_of, device_of
from support.layout_runs import (
    ODD,
    check_skips,
    check_weights,
    marked,
    run_case,
)
from support.resumed import JOB, check_run, stop_before_checkpoint
from support.runs import Watch, merged, only_run

pytestmark = pytest.mark.ci

ALL_WEIGHTS = {"train.lora": None}
KL = {"algorithm.kl_coefficient": 0.1}
CODED = {
    "model.cuts": [{"block": 1, "backward": "int4"}, {"block": 2, "forward": "int4"}],
    "parallel.stage_blocks": [1, 1, 2],
    "train.min_gradient_cosine": 0.9,
}
BEST_OF_TWO_SIZES = {"algorithm.best_of": 2, "model.sizes": [[32, 48, 1]]}
OF_SANA = {"model.negative_prompt": "blurry"}  # its tiny tokenizer makes nothing of nothing
OF_FLUX2 = {"train.lora": {"rank": 4, "alpha": 8.0, **TARGETS["flux2"]}}
BY_SIZE = "parallel.stages_by_size"
UNEQUAL = {BY_SIZE: [[1, 3], [2, 1, 1]]}
LAGGING = {"algorithm": {"type": "diffusion_nft", "old_policy_decay": "ramp"}}


@dataclass(frozen=True)
class StageCase(GangCase):
    """A layout on gangs whose members hold stages, and a worker that holds all blocks."""

    family: str = "flux"
    rollout: str = "three"
    trainers: tuple[str, ...] = ()

    def __str__(self):
        names = "+".join([self.rollout, *self.trainers])
        return "-".join([self.layout, self.family, names, *self.settings])

    @property
    def changes(self) -> dict:
        stages = max(SIZES[name] for name in (self.rollout, *self.trainers))
        cut = {} if BY_SIZE in self.settings else {"parallel.stages": stages}
        return cut | super().changes


CASES = [
    StageCase("tsp", trainers=("single",), settings=KL),
    StageCase("tsp", trainers=("single",), settings=KL | CODED),
    StageCase("colocated", family="sd3", rollout="two", settings=KL),
    StageCase("tsp", rollout="single", trainers=("three",), settings=KL | ALL_WEIGHTS),
    StageCase("elastic", rollout="single", trainers=("three",), helping=True, settings=KL),
    StageCase("colocated", family="wan", rollout="two", settings=ALL_WEIGHTS, dtype="float32"),
    StageCase("colocated", family="wan", rollout="two"),
    StageCase("colocated", family="wan-a14b", rollout="two", settings=KL),
    StageCase("tsp", rollout="two", trainers=("single",), settings={"model.sizes": [[32, 48, 1]]}),
    StageCase("colocated", family="qwen_image", rollout="two", settings=KL),
    StageCase("colocated", family="qwen_image21", rollout="two", settings=KL),
    StageCase("colocated", family="z_image", rollout="two", settings=KL),
    StageCase("colocated", family="hunyuan_video", settings=KL),
    StageCase("colocated-strong", family="hunyuan_video", settings=KL | ALL_WEIGHTS),
    StageCase("tsp", rollout="single", trainers=("two",), settings={"algorithm.kl_reward": 0.1}),
    StageCase("colocated", family="sd3", rollout="two", dtype="float32"),
    StageCase("elastic", trainers=("two",), helping=True, settings=KL | UNEQUAL),
    StageCase("tsp", rollout="single", trainers=("three", "two"), settings=ALL_WEIGHTS | UNEQUAL),
    StageCase("colocated", family="flux2", settings=KL | OF_FLUX2),
    StageCase("tsp", family="flux2", rollout="single", trainers=("three",), settings=ALL_WEIGHTS),
    StageCase("tsp", rollout="single", trainers=("three",), settings=KL | BEST_OF_TWO_SIZES),
    StageCase("colocated", family="hunyuan_video15", rollout="two", settings=KL),
    StageCase("colocated", family="ltx2", rollout="two", settings=KL),
    StageCase("colocated", family="sana", rollout="two", settings=KL | OF_SANA),
]


@pytest.fixture(scope="module")
def address(prefect_backend):
    """Address of a cluster of a gang of three, one of two, and a worker that is in none."""
    with cluster_of("three", "two", "single") as address:
        yield address


def model_of(family: str, folders: dict[str, str]) -> dict:
    return {
        "model.family": family_of(family),
        "model.path": folders[family],
        "model.num_frames": frames_of(family),
        "model.guidance_scale": 3.0,
    }


@pytest.mark.parametrize("case", marked(CASES, (1,), "layouts"), ids=str)
def test_stages_give_the_weights_of_the_serial_loop(
    case, tree, tiny_families, address, monkeypatch
):
    run = run_case(case, tree, address, monkeypatch, **model_of(case.family, tiny_families))
    # Wan has modules in float32, which round otherwise with another number of samples, and Z-Image
    # turns queries and keys in it
    check_weights(run, 1e-5 if family_of(case.family) in ROUNDED_TO_FLOAT32 else None)
    tasks = Counter(span.kind for span in run.spans)
    assert tasks["train"], "a task of a gang shows once, as its leader's"


@pytest.mark.nightly
def test_stages_on_two_hosts_give_the_weights_of_the_serial_loop(
    tree, tiny_families, room, monkeypatch
):
    case = StageCase("colocated", rollout="room", settings=KL)
    run = run_case(case, tree, room, monkeypatch, **model_of("flux", tiny_families))
    check_weights(run)
    assert {span.device for span in run.spans} == {"room"}


@pytest.mark.layouts
@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=str)
def test_stages_drop_and_skip_what_the_serial_loop_does(
    case, tree, tiny_families, address, monkeypatch
):
    changes = ODD | model_of(case.family, tiny_families)
    check_skips(run_case(case, tree, address, monkeypatch, **changes))


def test_gangs_that_are_no_multiple_are_refused_before_a_model_is_loaded(
    tree, address, monkeypatch
):
    case = StageCase("colocated", rollout="three", settings={"parallel.stages": 2})
    with pytest.raises(UserError, match="stages is 2, which does not divide a gang of 3; what"):
        run_case(case, tree, address, monkeypatch)
    case = StageCase("colocated", rollout="single", settings={"parallel.stages": 2})
    with pytest.raises(UserError, match="stages is 2, but no device of the run is a gang"):
        run_case(case, tree, address, monkeypatch)


@pytest.mark.layouts
def test_a_run_is_not_told_what_the_one_before_had_to_change(
    tree, tiny_families, address, monkeypatch
):
    """It begins while the members of the gang end, to be started again."""
    model = model_of("flux2", tiny_families)
    with pytest.raises(UserError, match="name no layer of one of the stages"):
        run_case(StageCase("colocated", family="flux2"), tree, address, monkeypatch, **model)
    mended = StageCase("colocated", family="flux2", settings=OF_FLUX2)
    check_weights(run_case(mended, tree, address, monkeypatch, **model))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param(LAGGING | {"train.learning_rate": 1e-2}, marks=pytest.mark.layouts)],
    ids=["policy gradient", "an old policy"],
)
def test_a_run_goes_on_with_another_number_of_stages(
    changes, tree, tiny_families, address, monkeypatch
):
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    def config_on(name: str) -> RunConfig:
        """Return the config on one device, with as many stages as it has members."""
        devices = [device_of(name)]
        monkeypatch.setattr("flows.launch.devices_of", lambda client, colocated: devices)
        monkeypatch.setattr("flows.runtime.fleet.joining.new_workers", lambda *known: [])
        settings = {
            **JOB,
            **changes,
            "model.path": tiny_families["flux"],
            "schedule.layout": "colocated",
            "cluster.scheduler_address": address,
            "parallel.stages": SIZES[name],
        }
        return RunConfig.model_validate(merged(tree, settings))

    stop_before_checkpoint(3, config_on("three"))
    folder, config, watch = only_run(tree), config_on("two"), Watch()
    with watching(watch):
        post_train(config, str(folder))
    assert [record.iteration for record in watch.records] == [2, 3, 4]
    check_run(folder, config)
    exported = load_file(folder / "lora" / "pytorch_lora_weights.safetensors")
    kinds = ("transformer_blocks", "single_transformer_blocks")
    blocks = {".".join(name.split(".")[1:3]) for name in exported}
    assert blocks == {f"{kind}.{number}" for kind in kinds for number in range(2)}
