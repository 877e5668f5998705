"""Rewards of latents in whole runs: the serial loop's weights, and what was decoded for them."""

import os
import shlex
import subprocess
import sys
from collections import Counter
from textwrap import dedent

import numpy as np
import pyarrow.dataset as ds
import pytest

from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.tensors import last_state
from digen_core.config.run import RunConfig
from digen_core.models.loading import load_trainable
from digen_core.models.policy import ALL_PARTS
from digen_core.transport.samples import read_samples
from support.layout_runs import Case, check_weights, marked
from support.pages import parts_of, read_page
from support.paths import ROOT
from support.runs import TOLERANCE, distance, merged, only_run, reference

pytestmark = pytest.mark.ci

BOTH = {
    "smooth_rewards:brightness": 1.0,
    "smooth_rewards:calm": {"takes": "latents", "weight": 0.05},
}
"""A reward of images and one of latents, that differ about as much in a group."""
CASES = [
    Case("colocated", (3,), 2, 8),
    Case("elastic", (2, 2), 1, 3, helping=True, pauses=True),
    Case("tcss", (2, 2), 2, 3, helping=True, share=1.0),
    Case("colocated-strong", (4,), 1, 3),
    Case("disaggregated", (3, 1), 2, 3),
    Case("gap", (2, 2), 2, 8),
    Case("tsp", (2, 1), 4, 3),
    Case("tag", (2, 2), 1, 8, helping=True),
]
DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]


@pytest.mark.parametrize("case", marked(CASES, (), "layouts"), ids=str)
def test_weights_equal_the_serial_reference(case, run_layout):
    run = run_layout(case, rewards=BOTH)
    check_weights(run)
    for row in run.samples():
        bright, calm = (row[f"{name}/score"] for name in BOTH)
        assert row["reward"] == pytest.approx(bright + 0.05 * calm, rel=1e-12)
        assert calm < 0 < bright


def test_a_pool_and_groups_judge_latents(tree, prefect_backend):
    from deployments.bench.runs import evaluate_serially
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    changes = {
        "rewards": {
            "smooth_rewards:brightness": 1.0,
            "smooth_rewards:calm": {"takes": "latents", "weight": 0.05, "pool": "judges"},
            "smooth_rewards:calm_among": {"takes": "latents", "sees": "groups", "pool": "judges"},
        },
        "cluster.reward_workers": {"judges": 1},
        "rollout.fragment_size": 2,
        "schedule.layout": "disaggregated",
        "num_iterations": 2,
    }
    config = RunConfig.model_validate(merged(tree, changes))
    report = post_train(config)
    run_dir, serial = only_run(tree), reference(config)
    assert distance(last_state(run_dir).weights, serial.weights) < TOLERANCE["float64"]

    policy = load_trainable(config, ALL_PARTS)
    expected = evaluate_serially(config, policy, serial.ema)
    assert report.after.rewards["reward"] == pytest.approx(expected, rel=1e-9)
    assert report.after.rewards["smooth_rewards:calm/score"] < 0

    rows = read_samples(run_dir / "samples").to_pandas()
    parts = [rows[f"{name}/score"] for name in config.rewards]
    assert np.allclose(rows.reward, np.dot([1.0, 0.05, 1.0], parts), rtol=1e-12)

    spans = ds.dataset(run_dir / "spans").to_table().to_pandas()
    scored = spans[(spans.kind == "score") & (spans.device == "judges-0")]
    of_groups = scored[scored.fragment < 0]
    assert (len(scored), len(of_groups)) == (2 * (4 + 2), 2 * 2)
    numbers = np.prod(policy.latent_shape) * 4  # bytes of a sample's latents, float32
    of_fragments = scored[scored.fragment >= 0].num_bytes
    assert (of_fragments >= 2 * numbers).all()
    assert (of_fragments < 2 * 3 * 32 * 32 * 4).all(), "no images were sent"

    settings = {"rewards": {"smooth_rewards:calm": {"takes": "latents"}}}
    again = evaluate_run(str(run_dir), settings=settings)
    name = "smooth_rewards:calm/score"
    assert again.rewards[name] == pytest.approx(report.after.rewards[name], rel=1e-9)


@pytest.mark.operation
def test_the_documented_example_decodes_what_is_shown(tmp_path, prefect_backend):
    """Beside a reward that weighs nothing and counts what a worker's VAE decodes."""
    page = read_page((ROOT / "docs/rewards.md").read_text())
    (tmp_path / "my_latents.py").write_text(dedent(page.files["my_latents.py"]))
    (text,) = {own.text for own in page.commands if "my_latents" in own.text}
    (words,) = parts_of(text)
    assert words[:4] == ["PYTHONPATH=.", "digen", "train", "shapes"]
    assert words[4:6] == ["--num-iterations", "2"]
    counting = "{type='function',function='smooth_rewards:CountsDecoded',takes='latents'"
    counting += ",weight=0,options={file='decoded.txt'}}"
    small = {
        "--rollout.prompts-per-iteration": 6,
        "--rollout.group-size": 6,
        "--rollout.fragment-size": 6,
        "--train.pack-size": 6,
        "--evaluation.samples-per-prompt": 2,
        "--evaluation.num-steps": 2,
        "--evaluation.grid-prompts": 3,
        "--cluster.rollout-workers": 1,
        "--rewards.counted": counting,
    }
    options = [str(part) for pair in small.items() for part in pair]
    folders = [tmp_path, ROOT, ROOT / "tests/support/own"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [*DIGEN, *words[2:], *options]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, shlex.join(command) + done.stderr
    (run_dir,) = (path.parent for path in tmp_path.glob("runs/*/config.json"))
    rows = read_samples(run_dir / "samples").to_pandas()
    assert len(rows) == 2 * 6 * 6
    assert rows["my_latents:latent_smoothness/score"].lt(0).all()
    assert rows.groupby(["iteration", "group"]).reward.nunique().gt(1).all()
    assert {path.name for path in (run_dir / "grids").iterdir()} >= {"before.png", "after.png"}
    decoded = Counter(map(int, (tmp_path / "decoded.txt").read_text().split()))
    # on each iteration's page the first 4 samples of 4 groups; in two grids 2 of 3 prompts
    assert decoded == {4: 2 * 4, 6: 2 * 1}
    assert evaluations_of(run_dir).keys() == {"before", "after"}
