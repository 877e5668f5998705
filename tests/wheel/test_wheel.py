"""An installed wheel has what digen ships, finds it by name from any folder, and trains with it."""

import json
import subprocess
import zipfile

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.ci

FOLDERS = ("deployments", "digen_core", "flows", "tasks")
CHECK_ALL = """
from deployments.shipped import shipped_configs
from digen_core.config.load import load_config
from digen_core.data.prompts import evaluation_prompts, train_prompts
for path in shipped_configs().values():
    config = load_config(path)
    assert train_prompts(config) and evaluation_prompts(config)
    print(path.stem)
"""


def test_everything_in_the_tree_is_in_the_wheel(wheel):
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert set(listed.stdout.splitlines()) <= packed
    assert "deployments/models/shapes/vae/diffusion_pytorch_model.safetensors" in packed
    assert not [name for name in packed if name.startswith(("tests/", "docs/", "runs/"))]


def test_config_show_gives_a_file_that_works_in_an_empty_folder(call, tmp_path):
    shown = call("digen", "config", "show", "shapes")
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "empty" / "mine.toml").write_text(shown.stdout)
    for config in ("mine.toml", "shapes"):
        # All checks but the last one pass: prompts, rewards, model and folders are found.
        address = "--cluster.scheduler-address=tcp://127.0.0.1:9"
        refused = call("digen", "train", config, address)
        assert refused.returncode == 2
        assert "cluster.scheduler_address is tcp://127.0.0.1:9, but nothing answers" in (
            refused.stderr
        )
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["mine.toml"]


def test_every_shipped_config_finds_its_prompts(call):
    done = call("python", "-c", CHECK_ALL)
    assert done.returncode == 0, done.stderr
    shipped = {path.stem for path in (ROOT / "deployments" / "configs").rglob("*.toml")}
    assert set(done.stdout.split()) == shipped


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        ("simulate B --layout tsp --split 16 --iterations 2", "tsp"),
        ("cluster show 8x-h100", "h100"),
        ("plan shapes --cluster 2-cores", "fragment_size"),
    ],
)
def test_other_shipped_files_are_found_by_name(arguments, out, call):
    done = call("digen", *arguments.split())
    assert done.returncode == 0, done.stderr
    assert out in done.stdout


@pytest.mark.operation
@pytest.mark.timeout(900)
def test_it_trains_what_it_ships(call, tmp_path):
    """Train, judge again, go on: workers and later processes find the same files.

    And import nothing of the user's, whose packages may have the names of digen's.
    """
    for name in FOLDERS:
        (tmp_path / "empty" / f"{name}.py").write_text("raise RuntimeError('this is not digen')")
    small = ["--evaluation.samples-per-prompt", "1", "--max-minutes", "3"]
    trained = call("digen", "train", "shapes", "--num-iterations", "2", *small, timeout=400)
    assert trained.returncode == 0, trained.stderr
    assert "2 iterations, 48 samples of 48 prompts per evaluation" in trained.stdout
    (run,) = (tmp_path / "empty" / "runs").glob("shapes-*")
    config = json.loads((run / "config.json").read_text())
    assert config["model"]["path"] == "digen:models/shapes"
    judged = call("digen", "evaluate", str(run), timeout=400)
    assert judged.returncode == 0, judged.stderr
    more = ["--num-iterations", "3", "--train.learning-rate-decay", "none"]
    refused = call("digen", "train", "--resume", str(run), *more)
    assert refused.returncode == 2  # found and compared: the cosine was over two iterations
    assert "train.learning_rate_decay was" in refused.stderr
    resumed = call("digen", "train", "--resume", str(run), timeout=400)
    assert resumed.returncode == 0, resumed.stderr
