"""The page about pairs from files is followed, with fewer of them: what it makes and trains."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from digen_core.config.load import load_config
from digen_core.rewards.shapes import verify
from support.pages import ROOT, read_page
from support.runs import only_run

PAGE = read_page((ROOT / "docs/tutorials/pairs.md").read_text())


@pytest.mark.operation
def test_its_pairs_are_made_and_trained(tmp_path, monkeypatch, cluster_address, prefect_backend):
    from flows.post_train import post_train

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for file, content in PAGE.files.items():
        (tmp_path / file).write_text(content.replace("SAMPLES = 16", "SAMPLES = 1"))
    subprocess.run([sys.executable, "make_pairs.py"], check=True, timeout=300)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert 24 < len(rows) < 144
    right = {
        name: [verify(np.asarray(Image.open(row[name])), row["prompt"]).exact for row in rows]
        for name in ("chosen", "rejected")
    }
    assert sum(right["chosen"]) > 0.95 * len(rows)
    assert not any(right["rejected"])
    changes = {
        "num_iterations": 2,
        "evaluation": {"samples_per_prompt": 1, "num_steps": 4},
        "cluster.scheduler_address": cluster_address(1, 1),
        "tracking.runs_dir": str(tmp_path / "runs"),
    }
    report = post_train(load_config(tmp_path / "pairs.toml", changes))
    assert report.after.rewards["shapes/score"] > 0.5
    assert "preferred/score" not in report.after.rewards
    assert only_run({"tracking": {"runs_dir": tmp_path / "runs"}}).is_dir()
