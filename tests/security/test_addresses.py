"""Passwords and tokens in addresses: what counts as one, and that none is shown."""

import io

import pytest
from rich.console import Console

from deployments import local
from deployments.cli import run
from deployments.operation.describe import describe
from deployments.operation.state import Options, State
from deployments.views.live_view import LiveView
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted, secret_in
from tasks.tracking.server import first_line

FINE = [
    "http://127.0.0.1:8000/score",
    "http://h/?max_tokens=3&monkey=1&author=me&keyboard=x&design=y",
    "https://h/a@b/c?q=a@b",
    "sqlite:////home/me@work/mlflow.db",
    "postgresql://me@db.example/runs",
    "tcp://10.0.0.1:8786",
    "runs/mlflow.db",
]
SECRET = {
    "http://u:s3cret@h/": "http://***@h/",
    "http://u:s3cret@x@h:1": "http://***@h:1",
    "HTTPS://s3cret@h": "HTTPS://***@h",
    "postgresql+psycopg2://me:s3cret@h/db": "postgresql+psycopg2://***@h/db",
    "http://h/?token=s3cret": "http://h/?token=***",
    "http://h/?x=1&Access-Token=s3cret#b": "http://h/?x=1&Access-Token=***#b",
    "http://h/?key=s3cret": "http://h/?key=***",
    "http://h/?apikey=s3cret;sig=s3cret": "http://h/?apikey=***;sig=***",
    "http://h/?password=s3cret": "http://h/?password=***",
    "http://h/?client_secret=s3cret": "http://h/?client_secret=***",
    "http://h/#access_token=s3cret": "http://h/#access_token=***",
    "http://h/?subscription-key=s3cret": "http://h/?subscription-key=***",
}


@pytest.mark.parametrize("address", FINE)
def test_addresses_without_secrets_are_taken(address):
    assert secret_in(address) is None


@pytest.mark.parametrize("address", SECRET)
def test_secrets_are_found_and_taken_out(address):
    assert secret_in(address)
    hidden = SECRET[address]
    assert redacted(f"error: '{address}', (see {address})") == f"error: '{hidden}', (see {hidden})"
    assert redacted(f"{hidden}, and") == f"{hidden}, and"


def test_long_texts_take_no_long_time():
    text = "a" * 300_000 + "://" + "b" * 300_000
    assert redacted(text) == text


def test_nothing_that_is_shown_has_a_password_in_it():
    address = "http://digen:s3cret@h:4200"
    out = io.StringIO()
    with LiveView(RunConfig(), "run", Console(file=out)) as view:
        view.on_phase(f"Prefect: {address}")
        view.on_warning(f"no answer from {address}")
    options = Options(
        cluster="2-cores", workers=True, host="127.0.0.1", tls=True, prefect_auth=True,
        mlflow_auth=True, names=(), deployments="x", ports=(1, 2, 3, 4),
    )  # fmt: skip
    names = ("prefect-server", "mlflow", "dask-scheduler", "dashboard")
    state = State(options=options, addresses=dict.fromkeys(names, address), environment={})
    shown = [
        out.getvalue(),
        describe(state, is_terminal=True),
        first_line(OSError(f"no answer from {address}")),
    ]
    assert all("http://***@h:4200" in text and "s3cret" not in text for text in shown)


def test_what_a_reward_says_before_the_run_is_text_without_passwords(tmp_path, monkeypatch, capsys):
    body = 'def score(*a):\n    raise ValueError("\\x1b[2J no answer from http://u:s3cret@h:1")\n'
    (tmp_path / "hostile_rewards.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(local, "run_training", lambda *a: (_ for _ in ()).throw(UserError("end")))
    rewards = '{"hostile_rewards:score" = {on_failure = "neutral"}}'
    assert run(["train", "shapes", "--rewards", rewards]) == 2
    err = capsys.readouterr().err
    assert "digen: warning: " in err
    assert "http://***@h:1" in err
    assert "s3cret" not in err
    assert "\x1b" not in err
