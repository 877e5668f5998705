"""Files of the house: workflows, templates, compose file and CONTRIBUTING say what there is."""

import ast
import re
import shlex
import tomllib
from itertools import pairwise, starmap

import pytest
import yaml
from cyclopts import App

from deployments.cli import app
from digen_core import NO_TELEMETRY
from support.paths import ROOT
from tasks.cluster import ahead, lineage
from tasks.cluster.cluster import QUIET, as_environment

YAML = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    *(ROOT / name for name in (".pre-commit-config.yaml", "compose.yaml", "mkdocs.yml")),
]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_it_is_yaml_with_something_in_it(path):
    assert yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    "path", [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *YAML], ids=lambda path: path.name
)
def test_it_names_targets_of_the_makefile(path):
    named = re.findall(r"(?:`|run: |^    )make ([a-z-]+)", path.read_text(), re.MULTILINE)
    text = path.read_text()
    if "matrix.suite" in text:
        suites = re.search(r"suite: \[(.*)\]", text)
        assert suites
        named = [f"test-{suite}" for suite in suites[1].split(", ")]
    assert set(named) <= TARGETS


def test_ci_is_the_workflow():
    jobs = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]
    (job,) = jobs.values()
    assert job["steps"][-1] == {"run": "bash .ci/run"}
    assert job["timeout-minutes"] <= 90


def test_compose_calls_commands_that_there_are():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    own = [shlex.split(s["command"]) for s in services.values() if s["command"].startswith("digen")]
    assert own
    for _, *tokens in own:
        assert isinstance(app, App)
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
        assert command.__name__ == "worker"
        assert bound.arguments["insecure"]


def test_the_scheduler_of_compose_remembers_as_little_as_that_of_digen_up():
    dask = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["dask"]
    assert as_environment(QUIET).items() <= dask["environment"].items()
    words = shlex.split(dask["command"])
    assert {lineage.PRELOAD, ahead.PRELOAD} <= {*words}
    assert "--no-dashboard" in words, "else it needs the gate of tasks.cluster.dashboard"


@pytest.mark.parametrize(
    ("file", "how"), [("Makefile", "export {} := {}"), ("Dockerfile", "{}={}")]
)
def test_telemetry_is_switched_off_for_all_that_is_started_there(file, how):
    text = (ROOT / file).read_text()
    assert [own for own in starmap(how.format, NO_TELEMETRY.items()) if own not in text] == []


def test_the_newest_release_is_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## \[(\d[\d.]*)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert newest == project["version"]


def test_versions_of_python_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, after = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    oldest, newest = f"3.{oldest}", f"3.{after - 1}"
    for file in ("README.md", "Makefile", "docs/install.md"):
        said = re.findall(r"(3\.\d+) (?:to|or) (3\.\d+)", (ROOT / file).read_text())
        assert set(said) == {(oldest, newest)}, file
    (job,) = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == [oldest, newest]


def test_prefect_in_compose_asks_for_a_password():
    prefect = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["prefect"]
    assert "prefect_app" in prefect["command"], "the gate stands before the server"
    assert "DIGEN_PASSWORD:?" in prefect["environment"]["PREFECT_SERVER_API_AUTH_STRING"]


def test_ports_of_compose_are_open_on_this_machine_only():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "ports" not in services["dask"]


def test_the_way_to_a_formula_is_three_files_of_imports():
    way = ["digen_core/reference/loop.py", "digen_core/reference/group.py"]
    way.append("digen_core/maths/flow_sde.py")
    assert way[0] in str(ast.get_docstring(ast.parse((ROOT / "flows/post_train.py").read_text())))
    assert all(f"`{path}`" in CONTRIBUTING for path in way)
    for path, following in pairwise(way):
        tree = ast.parse((ROOT / path).read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert following.removesuffix(".py").replace("/", ".") in imported


def assigned_in(file) -> list[str]:
    """What a file assigns to, as it is written there."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        inner = [own for target in targets for own in ast.walk(target)]
        found += [ast.unparse(own) for own in inner if isinstance(own, ast.Attribute)]
    return found


def test_only_progress_changes_what_a_run_has_reached():
    files = [file for folder in ("flows", "tasks") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    changed = {
        f"{file.relative_to(ROOT)}: {target}"
        for file in files
        for target in assigned_in(file)
        if re.match(r"(.+\.)?progress\.", target)
    }
    assert not changed
