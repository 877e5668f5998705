"""The picture of a plan, and of the cluster of a page."""

import tomllib

import pytest
from PIL import Image

from deployments.cli import run
from deployments.shipped import CLUSTERS, find_cluster
from deployments.views.plans.pictures import draw_plan
from deployments.views.plans.plan import plans_for
from digen_core.config.run import RunConfig
from support.pages import ROOT, read_page

CONFIG = RunConfig.model_validate(
    {"rollout": {"prompts_per_iteration": 4, "group_size": 4, "num_steps": 4}}
)


def test_a_lane_for_each_device_and_the_seconds_of_an_iteration():
    best, *_ = plans_for(CONFIG, find_cluster("16x-mixed"))
    (axes,) = draw_plan(best).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(names) == sorted(device.name for device in best.own.job.fleet)
    assert axes.get_xlim()[1] == pytest.approx(best.own.seconds, rel=0.05)
    assert axes.get_title(loc="left").startswith(f"an iteration of {best.own.layout}: ")
    assert {"train", "denoise"} <= {text.get_text() for text in _legends(axes)}


def _legends(axes):
    return [text for legend in axes.figure.legends for text in legend.get_texts()]


def test_the_command_writes_the_picture(tmp_path, capsys):
    config, picture = tmp_path / "own.toml", tmp_path / "plan.png"
    config.write_text("[rollout]\nprompts_per_iteration = 2\ngroup_size = 4\nnum_steps = 4\n")
    arguments = ["plan", str(config), "--cluster", "2-cores", "--timeline", str(picture)]
    assert run(arguments) == 0
    with Image.open(picture) as image:
        assert image.width > 1000
    picture.unlink()
    picture.mkdir()
    assert run(arguments) == 2
    assert f"cannot write the timeline to {picture}" in capsys.readouterr().err


def test_the_cluster_of_the_page_is_the_one_that_its_picture_is_of():
    page = read_page((ROOT / "docs" / "tutorials" / "two-sites.md").read_text())
    shown = tomllib.loads(page.files["two-sites.toml"])
    assert shown == tomllib.loads((CLUSTERS / "16x-two-sites.toml").read_text())
