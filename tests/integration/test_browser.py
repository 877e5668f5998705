"""A person's way through the pages: a deployment is run with its form, and two runs compared.

And what other pages in the same browser can do meanwhile: nothing.
"""

import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from support.paths import ROOT
from support.prefect_access import headers_of

pytestmark = [pytest.mark.operation, pytest.mark.timeout(600)]

DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]
PAGE_SECONDS = 60.0
RUN_SECONDS = 240.0
EVIL = "evil.example"
SMALL = {"Num Iterations": "2", "Prompts Per Iteration": "2", "Samples Per Prompt": "2"}


@pytest.fixture(scope="module")
def page():
    """A page of a browser without a window."""
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="playwright is missing: pip install -c constraints.txt playwright",
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is missing; on Debian: apt install chromium")
    with playwright.sync_playwright() as driver:
        # A name of somebody else's leads here: by its own server, or by DNS rebinding to ours.
        rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", rules])
        # One context: an attacker's page has the cookies and the storage of the person's browser.
        context = browser.new_context(viewport={"width": 1300, "height": 1200})
        opened = context.new_page()
        opened.set_default_timeout(1000 * PAGE_SECONDS)
        yield opened
        browser.close()


@pytest.fixture(scope="module")
def services(page, tmp_path_factory):
    """Addresses of what ``digen up`` starts in an empty folder; ``headers`` of programs."""
    folder = tmp_path_factory.mktemp("project")
    started = digen(folder, "up", "--ports", *free_ports(4))
    found = re.findall(r"^(\w+) +(http\S+)$", started, re.MULTILINE)
    lines = (folder / "runs" / "up" / "env").read_text().splitlines()
    auth = dict(line.split("=", 1) for line in lines)["PREFECT_API_AUTH_STRING"]
    addresses = dict(found)
    headers = headers_of(f"{addresses['Prefect']}/api", auth)
    page.goto(printed_link(folder))
    page.get_by_text("Deployments").first.wait_for()
    yield {**addresses, "headers": headers}
    digen(folder, "down")
    assert all(refuses(address) for _, address in found)


def digen(folder, *arguments):
    done = subprocess.run(
        [*DIGEN, *map(str, arguments)],
        cwd=folder,
        env=environment_in(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sign-in" not in done.stdout  # what is not a terminal may be a log
    return done.stdout


def environment_in(folder):
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")},
        "PREFECT_HOME": str(folder / "prefect"),
        "PYTHONPATH": str(ROOT),
        "PWD": str(folder),
    }


def printed_link(folder):
    """Return the link that ``digen status`` prints in a terminal."""
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [*DIGEN, "status"], cwd=folder, env=environment_in(folder), stdout=its
        )
        os.close(its)
        text = b""
        while b"sign-in?code=" not in text or not text.endswith(b"\n"):
            text += terminal.read(4096)
        process.wait(60)
    return re.search(r"http\S+/sign-in\S+", text.decode())[0]


def free_ports(count):
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def refuses(address):
    try:
        httpx.get(address, timeout=2)
    except httpx.HTTPError:
        return True
    return False


def ask(services, path, **body):
    response = httpx.post(
        f"{services['Prefect']}/api/{path}",
        json=body,
        headers=services["headers"],
        timeout=PAGE_SECONDS,
    )
    response.raise_for_status()
    return response.json()


def deployment_of(services):
    found = ask(services, "deployments/filter", flows={"name": {"any_": ["post-train"]}})
    return next(deployment for deployment in found if deployment["name"] == "shapes")


def run_of(services, run_id):
    url = f"{services['Prefect']}/api/flow_runs/{run_id}"
    return httpx.get(url, headers=services["headers"], timeout=PAGE_SECONDS).json()


def wait_until_completed(services, run_id):
    deadline = time.monotonic() + RUN_SECONDS
    while (run := run_of(services, run_id))["state_name"] != "Completed":
        assert run["state_type"] not in {"FAILED", "CRASHED", "CANCELLED"}, run["state"]
        assert time.monotonic() < deadline, run["state"]
        time.sleep(1)
    return run["name"]


@pytest.fixture(scope="module")
def first_run(page, services):
    """Id of a run that was started with the form of its deployment."""
    deployment = deployment_of(services)
    page.goto(f"{services['Prefect']}/v2/deployments/deployment/{deployment['id']}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()

    box = page.get_by_label("Num Iterations")
    box.fill("0")
    page.get_by_role("button", name="Submit").click()
    wrong = box.evaluate("box => box.validationMessage")
    assert wrong == "Value must be greater than or equal to 1."
    assert not ask(services, "flow_runs/filter")

    for label, value in SMALL.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Submit").click()
    deadline = time.monotonic() + PAGE_SECONDS
    while not (runs := ask(services, "flow_runs/filter")):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return runs[-1]["id"]


@pytest.fixture(scope="module")
def second_run(services, first_run):
    """Id of a run like the first, with another seed."""
    parameters = run_of(services, first_run)["parameters"]
    parameters["config"]["seed"] = 1
    deployment_id = deployment_of(services)["id"]
    path = f"deployments/{deployment_id}/create_flow_run"
    return ask(services, path, parameters=parameters)["id"]


ATTACK = """
async ([prefect, mlflow, deployment]) => {
  const tried = [];
  const attempt = async (name, what) => {
    try { tried.push([name, await what()]); } catch (error) { tried.push([name, String(error)]); }
  };
  // Without a type and without asking: the "simple request" of a page, which needs no consent.
  const body = (tree) => new Blob([JSON.stringify(tree)]);
  const post = (url, tree) => fetch(url, {method: "POST", mode: "no-cors", body: body(tree)});
  const run = {job_variables: {command: "touch owned"}, state: {type: "SCHEDULED"}};
  const url = `${prefect}/api/deployments/${deployment}/create_flow_run`;
  await attempt("simple", async () => (await post(url, run)).type);
  await attempt("mlflow", async () =>
    (await post(`${mlflow}/api/2.0/mlflow/experiments/create`, {name: "owned"})).type);
  await attempt("read", async () => (await fetch(`${prefect}/api/admin/settings`)).status);
  await attempt("same", async () =>
    (await fetch(`/api/deployments/${deployment}/create_flow_run`,
      {method: "POST", body: body(run)})).status);
  for (const path of ["events/in", "events/out"]) {
    await attempt(path, () => new Promise((resolve) => {
      const socket = new WebSocket(`${prefect.replace("http", "ws")}/api/${path}`, ["prefect"]);
      socket.onopen = () => resolve("open");
      socket.onerror = () => resolve("closed");
    }));
  }
  tried.push(["password", localStorage.getItem("prefect-password")]);
  return tried;
}
"""


@pytest.fixture
def evil_server(tmp_path):
    """A server of somebody else's with one page."""

    class Page(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *arguments):
            pass

    (tmp_path / "index.html").write_text("<!doctype html><title>evil</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("rebound", [False, True])
def test_another_page_starts_nothing_and_learns_nothing(page, services, evil_server, rebound):
    deployment = deployment_of(services)["id"]
    before = ask(services, "flow_runs/count"), tracked_names(services)
    port = services["Prefect"].rpartition(":")[2] if rebound else evil_server
    other = page.context.new_page()
    answer = other.goto(f"http://{EVIL}:{port}/")
    assert answer.status == (403 if rebound else 200)
    addresses = services["Prefect"], services["MLflow"]
    if rebound:  # now Prefect's server is the page's own, and MLflow's the next
        addresses = tuple(address.replace("127.0.0.1", EVIL) for address in addresses)
    tried = dict(other.evaluate(ATTACK, [*addresses, deployment]))
    other.close()
    assert tried["events/in"] == tried["events/out"] == "closed"
    assert tried["read"] in (403, "TypeError: Failed to fetch")
    assert tried["same"] == (403 if rebound else 501)
    assert tried["password"] is None
    assert before == (ask(services, "flow_runs/count"), tracked_names(services))


def tracked_names(services):
    """Return the names of MLflow's experiments."""
    api = f"{services['MLflow']}/api/2.0/mlflow/experiments/search"
    return [one["name"] for one in httpx.post(api, json={"max_results": 9}).json()["experiments"]]


def test_a_run_is_started_with_the_form_and_shown(page, services, first_run, second_run):
    name = wait_until_completed(services, first_run)
    page.goto(f"{services['Prefect']}/v2/runs/flow-run/{first_run}")
    page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_text("Completed", exact=True).first.wait_for()
    page.get_by_role("tab", name="Subflow Runs").click()
    page.get_by_text(f"{name}-i0001").first.wait_for()
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("digen-report").first.wait_for()
    (report,) = ask(
        services,
        "artifacts/filter",
        artifacts={"key": {"any_": ["digen-report"]}, "flow_run_id": {"any_": [first_run]}},
    )
    page.goto(f"{services['Prefect']}/v2/artifacts/artifact/{report['id']}")
    page.get_by_text("2 of 2 iterations, finished").first.wait_for()


def test_two_runs_are_compared_in_mlflow(page, services, first_run, second_run):
    names = [wait_until_completed(services, run) for run in (first_run, second_run)]
    runs = tracked(services, names)
    (experiment,) = {run["info"]["experiment_id"] for run in runs.values()}
    ids = json.dumps([runs[name]["info"]["run_id"] for name in names], separators=(",", ":"))
    base = f"{services['MLflow']}/#"
    page.goto(f'{base}/compare-runs?runs={ids}&experiments=["{experiment}"]')
    page.get_by_text("Comparing 2 Runs").first.wait_for()
    for name in names:
        page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_text("Show diff only").first.click()
    page.get_by_text("seed", exact=True).first.wait_for()
    page.goto(f"{base}/experiments/{experiment}/runs?compareRunsMode=CHART")
    page.locator(".js-plotly-plot, canvas").first.wait_for()


def tracked(services, names):
    """Return MLflow's runs by name."""
    api = f"{services['MLflow']}/api/2.0/mlflow"
    experiments = httpx.post(f"{api}/experiments/search", json={"max_results": 10}).json()
    ids = [experiment["experiment_id"] for experiment in experiments["experiments"]]
    found = httpx.post(f"{api}/runs/search", json={"experiment_ids": ids, "max_results": 50}).json()
    return {
        run["info"]["run_name"]: run for run in found["runs"] if run["info"]["run_name"] in names
    }
