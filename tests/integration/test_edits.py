"""Edits in whole runs: prompts with source images, from the file to weights, rows and pages."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.run import RunConfig
from digen_core.data.images import SourceImage
from digen_core.data.prompts import train_prompts
from digen_core.errors import UserError
from digen_core.reference.replay import kept_iteration, replay_config
from digen_core.transport.samples import read_samples
from support.architecture import entries_of_a_run
from support.edits import picture
from support.families import EDITORS, KONTEXT, TOKENS, family_of, tolerance_of
from support.in_process import train_in_process
from support.layout_runs import train_only
from support.runs import (
    TOLERANCE,
    Watch,
    distance,
    initial,
    merged,
    only_run,
    reference,
    training_in_mlflow,
    tree_of,
)
from tasks.replay import replay

TEXTS = ["a red circle", "two blue squares"]
CHANGES = {
    "rewards": {"smooth_rewards:like_source": {"weight": 30.0}},
    "train.adam_eps": 1e-6,
    "rollout.fragment_size": 2,
    "train.pack_size": 3,
}


def write_prompts(folder: Path, count: int, *, several: bool = False) -> str:
    """Write few words about many images, some of them files and some in their rows.

    If several are asked for, every third prompt has two and every other third three of them.
    """
    rows = []
    for number in range(count):
        image = "data:image/png;base64," + base64.b64encode(picture(number)).decode()
        if number % 2:
            (folder / f"{number}.png").write_bytes(picture(number))
            image = f"{number}.png"
        if several and (more := number % 3):
            image = [image, *(f"{number - number % 2 + 1}.png" for _ in range(more))]
        steers_from = [None, "blurry", ""][number % 3]
        rows.append({"prompt": TEXTS[number // 2 % 2], "image": image, "not": steers_from})
    (folder / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "edits.jsonl")


def config_of(
    path: str, folder: Path, family: str = "flux", *, several: bool = False, **changes
) -> RunConfig:
    tree = tree_of(path, folder)
    tree["model"] |= {"family": family, "max_sequence_length": TOKENS, "device": "cpu"}
    train = write_prompts(folder, 8, several=several)
    if several:
        changes = {"rewards": {"smooth_rewards:like_all_sources": {"weight": 30.0}}, **changes}
        tree["model"] |= {"max_source_images": 3, "guidance_scale": 3.0}
    tree["prompts"] = {"train": train, "image_column": "image", "evaluation_fraction": 0.25}
    return RunConfig.model_validate(merged(tree, {**CHANGES, **changes}))


@pytest.fixture(scope="module")
def kontext(tiny_families) -> str:
    return tiny_families[KONTEXT]


@pytest.mark.ci_but_one
@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "flux",
        "flux2",
        pytest.param("qwen_image21", marks=pytest.mark.families),
        "wan-ti2v",
        *(pytest.param(own, marks=pytest.mark.nightly) for own in EDITORS),
    ],
)
def test_weights_equal_the_serial_reference_with_images_in_several_sizes(
    model, kontext, tiny_families, tmp_path
):
    path, family = kontext if model == "flux" else tiny_families[model], family_of(model)
    changes = {"model.sizes": [[32, 32, 1], [16, 48, 1]], "num_iterations": 2}
    if family != "flux":  # whose guidance is classifier-free
        changes |= {"model.guidance_scale": 3.0, "prompts.negative_column": "not"}
    if family in VIDEO_FAMILIES:
        changes |= {"model.num_frames": 5, "model.sizes": [[32, 32, 5], [64, 32, 9]]}
    config = config_of(path, tmp_path, family, **changes)
    weights, metrics = train_in_process(config, tmp_path)
    expected = reference(config)
    assert distance(expected.weights, initial(config)) > 1e-4
    tolerance = tolerance_of(model)
    assert distance(weights, expected.weights) < tolerance
    assert all(found["train/replay_error"] < tolerance for found in metrics)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "flux2",
        pytest.param("qwen_image21", marks=pytest.mark.families),
        pytest.param("qwen_image-edit-plus", marks=pytest.mark.nightly),
    ],
)
def test_weights_equal_the_serial_reference_with_several_images(model, tiny_families, tmp_path):
    """Prompts have one, two or three of them, packs pairs of each, and sizes are two."""
    changes = {"model.sizes": [[32, 32, 1], [16, 48, 1]], "prompts.negative_column": "not"}
    path, family = tiny_families[model], family_of(model)
    config = config_of(path, tmp_path, family, several=True, num_iterations=2, **changes)
    weights, metrics = train_in_process(config, tmp_path)
    expected = reference(config)
    assert distance(expected.weights, initial(config)) > 1e-4
    assert distance(weights, expected.weights) < 1e-10
    assert all(found["train/replay_error"] < 1e-10 for found in metrics)


@pytest.mark.families
@pytest.mark.parametrize("lora", [True, False])
def test_gangs_that_deal_the_tokens_of_edits_make_the_serial_loops_weights(
    tiny_families, prefect_backend, tmp_path, lora
):
    """One to three images beside texts of several lengths: sequences of any number of tokens."""
    changes = {
        "num_iterations": 2,
        "model.sizes": [[32, 32, 1], [16, 48, 1]],
        "cluster": {"rollout_gang": 2, "trainer_gang": 2},
        "parallel.context_parallel": 2,
        "evaluation.every": 0,
        **({} if lora else {"train.lora": None}),
    }
    path = tiny_families["qwen_image21"]
    config = config_of(path, tmp_path, "qwen_image21", several=True, **changes)
    run_dir = train_only(config)
    found = read_checkpoint(checkpoints_in(run_dir / CHECKPOINTS_OF_RUN)[-1]).weights
    assert distance(found, reference(config).weights) < TOLERANCE["float64"]
    assert distance(found, initial(config)) > 1e-4


@pytest.mark.slow
def test_latents_of_edits_are_judged_beside_their_source_images(kontext, tmp_path):
    rewards = {"smooth_rewards:like_latents_of_source": {"takes": "latents"}}
    changes = {"model.sizes": [[32, 32, 1], [16, 48, 1]], "num_iterations": 2, "rewards": rewards}
    config = config_of(kontext, tmp_path, **changes)
    weights, _ = train_in_process(config, tmp_path)
    expected = reference(config)
    assert distance(expected.weights, initial(config)) > 1e-4
    assert distance(weights, expected.weights) < tolerance_of(KONTEXT)


RUNS = [
    pytest.param("elastic", marks=pytest.mark.ci),
    *(pytest.param(own, marks=pytest.mark.nightly) for own in ("tcss", "several")),
]


@pytest.fixture(scope="module", params=RUNS)
def trained(request, kontext, tiny_families, cluster_address, prefect_backend, tmp_path_factory):
    """A run of three iterations under a layout: its config, folder, and what it showed."""
    from flows.runtime.observers import watching

    changes = {
        "schedule.layout": "elastic" if request.param == "several" else request.param,
        "cluster.scheduler_address": cluster_address(1, 1),
        "checkpoints.keep_every": 1,
        "tracking.keep_images": "extremes",
        "tracking.keep_trajectories": 3,
        "evaluation.every": 0,
    }
    of_model = (kontext, tmp_path_factory.mktemp("edits"), "flux")
    if request.param == "several":
        of_model = (tiny_families["flux2"], of_model[1], "flux2")
        changes["rollout.refill"] = 1  # groups that nobody needs have a cost, too
    config, watch = config_of(*of_model, several=request.param == "several", **changes), Watch()
    with watching(watch):
        return config, train_only(config), watch


@pytest.mark.slow
def test_a_run_makes_the_serial_loops_weights(trained):
    config, run_dir, _ = trained
    found = read_checkpoint(checkpoints_in(run_dir / CHECKPOINTS_OF_RUN)[-1]).weights
    if config.schedule.layout == "elastic":
        assert distance(found, reference(config).weights) < TOLERANCE["float64"]
    assert distance(found, initial(config)) > 1e-4
    assert {path.name for path in run_dir.iterdir()} <= entries_of_a_run()


@pytest.mark.slow
def test_rows_name_the_images_that_were_edited(trained):
    config, run_dir, _ = trained
    known = [(own.text, [*own.images]) for own in train_prompts(config)]
    rows = read_samples(run_dir / "samples").to_pylist()
    assert {row["source_images"][0].split("/")[0] for row in rows} == {"sources"}
    for row in rows:
        images = [SourceImage.of((run_dir / own).read_bytes()) for own in row["source_images"]]
        assert (row["prompt"], images) in known
        if row["image"] is not None:
            made = np.asarray(Image.open(run_dir / row["image"])) / 255
            before = np.mean([own.pixels(*made.shape[:2]) / 255 for own in images], axis=0)
            reward = -30 * np.square(made - before / 2).mean()
            assert row["reward"] == pytest.approx(reward, rel=0.02)
    files = {path.relative_to(run_dir).as_posix() for path in run_dir.glob("sources/*")}
    assert files == {name for row in rows for name in row["source_images"]}


@pytest.mark.slow
def test_pages_show_what_was_edited(trained):
    config, _, watch = trained
    shown = [own.sources for record in watch.records for own in record.pictures]
    assert all(source.startswith(b"\xff\xd8") for sources in shown for source in sources)
    assert max(map(len, shown)) == config.model.max_source_images


@pytest.mark.slow
def test_a_replay_with_the_images_makes_the_version_that_the_run_made(trained):
    run_dir = trained[1]
    kept = kept_iteration(run_dir, replay_config(run_dir, {}), 1)
    assert replay(run_dir, kept).difference < TOLERANCE["float64"]


@pytest.mark.operation
def test_a_shipped_job_teaches_to_edit(prefect_backend, cluster_address, tmp_path):
    """Two small iterations of it, with an evaluation before and after."""
    from digen_core.config.load import load_config
    from digen_core.inputs.shipped import located
    from flows.post_train import post_train

    changes = {
        "num_iterations": 2,
        "rollout.prompts_per_iteration": 2,
        "rollout.group_size": 4,
        "evaluation": {"samples_per_prompt": 1, "num_steps": 4, "grid_prompts": 3},
        "cluster.scheduler_address": cluster_address(1, 1),
        "tracking.runs_dir": str(tmp_path / "runs"),
    }
    report = post_train(load_config(Path(located("digen:configs/shapes_edit.toml")), changes))
    assert report.before.rewards["shapes_edit/score"] > 0.5
    assert report.after.num_prompts == 72
    run_dir = only_run({"tracking": {"runs_dir": tmp_path / "runs"}})
    assert training_in_mlflow(tmp_path / "runs").info.status == "FINISHED"
    grid = Image.open(next(run_dir.rglob("grids/*.png")))
    assert grid.width > grid.height / 3


@pytest.mark.slow
def test_a_replay_with_other_images_is_refused(trained):
    config, run_dir, _ = trained
    folder = Path(config.prompts.train).parent
    before = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(picture(99))
    try:
        with pytest.raises(UserError, match=r"or their images, have changed since .* put the old"):
            kept_iteration(run_dir, replay_config(run_dir, {}), 1)
    finally:
        (folder / "1.png").write_bytes(before)


@pytest.mark.slow
def test_an_editor_is_judged_by_a_suite_without_images(trained):
    _, run_dir, _ = trained
    config = judged_config(run_dir, Judging("prompts.jsonl", suite="geneval"))
    assert not config.model.source_image
    assert config.prompts.are_texts
