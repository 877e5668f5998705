"""An algorithm and a model family that are added: a module and a row each, and nothing else.

They are added to a copy of the packages, run there as a user runs them, through Prefect and Dask,
and compared with the serial loop of the copy.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT
from support.runs import merged, tree_of

PACKAGES = ("deployments", "digen_core", "flows", "tasks")
ALGORITHM = '''\
"""REINFORCE: the importance-weighted policy gradient, without a clip."""

from typing import TYPE_CHECKING, Literal

from digen_core.algorithms.policy_gradient import FirstSteps

if TYPE_CHECKING:
    from digen_core.maths.grpo import SurrogateLoss
    from digen_core.maths.replay import Replay


class Reinforce(FirstSteps):
    """REINFORCE: advantage times ratio."""

    type: Literal["reinforce"] = "reinforce"

    strength: float = 1.0
    """Factor of the loss."""

    def surrogate(self, replay: "Replay") -> "SurrogateLoss":
        """Return one loss per pair, [B]."""
        found = super().surrogate(replay)
        ratio = (replay.logprob - replay.behaviour_logprob).exp()
        return found._replace(per_pair=-self.strength * replay.advantage * ratio)
'''
FAMILY = '''\
"""Sketch: a FLUX that is steered at half speed."""

from torch import Tensor

from digen_core.models.families.flux import FluxPolicy
from digen_core.models.policy import Condition


class SketchPolicy(FluxPolicy):
    """A sketch pipeline as a Policy."""

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels]."""
        return super().predict(x, sigma, condition) / 2
'''
FAMILY_ROW = """\
    "sketch": Family(
        "sketch:SketchPolicy",
        "FluxPipeline",
        Defaults(32, 32, 1, 12, 3.5, 2),
        lambda vae, transformer: 2 * _pixels(vae),
    ),
"""
DIGEN = "from deployments.cli import main; raise SystemExit(main())"
WRITE = """
import json, sys
from digen_core.config.run import RunConfig
from digen_core.config.toml import as_toml
print(as_toml(RunConfig.model_validate(json.loads(sys.argv[1]))))
"""
COMPARE = """
import json, sys
from pathlib import Path
from digen_core.checkpoints.tensors import last_state
from digen_core.config.load import load_config
from support.runs import distance, initial, reference
config, run = load_config(Path(sys.argv[1])), Path(sys.argv[2])
weights, serial = last_state(run).weights, reference(config).weights
print(json.dumps([distance(weights, serial), distance(serial, initial(config))]))
"""


def add_row(file: Path, first: str, row: str) -> None:
    """Put a row before the first one of a table."""
    text = file.read_text()
    assert text.count(first) == 1
    file.write_text(text.replace(first, row + first))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the packages with the algorithm and the family."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / package, ignore=ignored)
    core = copy / "digen_core"
    (core / "algorithms" / "reinforce.py").write_text(ALGORITHM)
    add_row(core / "algorithms" / "__init__.py", '    "flow_grpo:', '    "reinforce:Reinforce",\n')
    (core / "models" / "families" / "sketch.py").write_text(FAMILY)
    add_row(core / "config" / "families.py", '    "sd3": Family(', FAMILY_ROW)
    return copy


@pytest.fixture
def call(checkout, tmp_path):
    """Return a function that runs Python with the copy in a folder of its own."""
    hidden = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DASK_SCHEDULER_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    folders = [checkout, ROOT / "tests", ROOT / "tests" / "support" / "own"]
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PREFECT_HOME": str(tmp_path / "prefect"),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_no_other_file_names_them(checkout):
    named = {
        path.relative_to(checkout).as_posix()
        for path in checkout.rglob("*.py")
        if re.search(r"\b([Rr]einforce|[Ss]ketch(Policy)?)\b", path.read_text())
    }
    assert named == {
        "digen_core/algorithms/__init__.py",
        "digen_core/algorithms/reinforce.py",
        "digen_core/config/families.py",
        "digen_core/models/families/sketch.py",
    }


def test_they_are_in_the_reference_of_the_config(call):
    page = call("-c", DIGEN, "config", "reference")
    assert '## [algorithm], type = "reinforce"' in page
    assert "| `strength` | number | `1.0` | Factor of the loss. |" in page
    assert "| `sketch` | 32 | 32 | 1 | 12 | 3.5 | 2 |" in page


@pytest.mark.nightly
def test_they_train_to_the_weights_of_the_serial_loop(call, tmp_path):
    call("-c", DIGEN, "make-tiny", "sketch", "model")
    changes = {
        "num_iterations": 2,
        "model.family": "sketch",
        "algorithm": {"type": "reinforce", "trained_fraction": 0.7, "strength": 0.5},
        "train.adam_eps": 1e-6,
        "cluster": {"rollout_workers": 1, "trainer_workers": 1},
    }
    tree = merged(tree_of(str(tmp_path / "model"), tmp_path), changes)
    (tmp_path / "run.toml").write_text(call("-c", WRITE, json.dumps(tree)))
    call("-c", DIGEN, "train", "run.toml")
    (run,) = (tmp_path / "runs").glob("*/config.json")
    compared = call("-c", COMPARE, "run.toml", str(run.parent))
    off, moved = json.loads(compared.splitlines()[-1])
    assert moved > 1e-3
    assert off < 1e-10
