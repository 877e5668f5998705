"""Which runs of a flow are new, and which versions of a run are on disk when it evaluates them.

What new runs are refused for does not end those that go on.
"""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    LINEAGE_OF_RUN,
    Lineage,
    checkpoints_in,
    name_of,
)
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from flows import post_train as flow
from flows.runtime import publishing
from support.checkpoints import position_of
from support.contexts import run_context

FOLDER = "runs/mine-20260101-120000"
KEPT_FOR_NOTHING = {"train": "a.txt", "evaluation": "b.txt", "evaluation_fraction": 0.5}


class OpenedError(Exception):
    """A run is opened: nothing was refused."""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config that a new run is refused, where nothing else is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("digen_core.preflight.run.check_inputs", lambda config: None)
    monkeypatch.setattr("digen_core.preflight.run._check_surroundings", lambda config: None)
    monkeypatch.setattr(flow, "probe_before_start", lambda config, warn: None)

    def opened(config, folder):
        raise OpenedError(folder)

    monkeypatch.setattr(flow, "open_run", opened)
    return RunConfig.model_validate({"name": "mine", "prompts": KEPT_FOR_NOTHING})


@pytest.fixture
def begun(config, monkeypatch):
    """A run of that config which a flow run of a deployment began, and which is called again."""
    lineage = Lineage(
        run_id="mine",
        mlflow_run_id="mine",
        flow_run_ids=("called-twice",),
        prompts_hash="a",
        evaluation_prompts_hash="b",
    )
    Path(FOLDER).mkdir(parents=True)
    (Path(FOLDER) / CONFIG_OF_RUN).write_text(config.model_dump_json())
    (Path(FOLDER) / LINEAGE_OF_RUN).write_text(lineage.model_dump_json())
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "called-twice")


@pytest.mark.parametrize("resume", [None, "", "auto"])
def test_where_no_run_is_to_be_resumed_it_is_new(resume, config):
    with pytest.raises(ConfigError, match="would be neither trained on nor evaluated"):
        flow.post_train.fn(config, resume)


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("resume", [None, "", "auto", FOLDER])
def test_a_run_that_was_begun_goes_on_however_it_is_called(resume, config):
    with pytest.raises(OpenedError, match=FOLDER):
        flow.post_train.fn(config, resume)


WITHOUT_SIGNAL = (1, 2, 5)
"""Iterations that make no version, of nine."""


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Return a function that trains nine iterations, and returns what is on disk as it evaluates.

    It takes settings of checkpoints, and returns the version and the checkpoints by tag.
    """

    def keep(client, workers, run_id, version, run_dir, position):
        (run_dir / CHECKPOINTS_OF_RUN / name_of(version)).mkdir(parents=True)
        return True

    def trained(**settings):
        values = {"num_iterations": 9, "evaluation": {"every": 3}, "checkpoints": settings}
        run = run_context(tmp_path, RunConfig.model_validate(values))
        found = {}

        def complete(index, last):
            if index not in WITHOUT_SIGNAL:
                run.progress.version += 1
                run.progress.has_made(run.progress.version, position_of(index + 1))
                if run.config.is_kept(run.progress.version):
                    publishing._keep_checkpoint(run, run.progress.version, run.progress.made[1])

        @contextmanager
        def on_cluster(run, subflow):
            yield SimpleNamespace(complete=complete, limit_reached=None)

        def evaluate(run, tag):
            there = checkpoints_in(run.run_dir / CHECKPOINTS_OF_RUN)
            found[tag] = (run.progress.version, [path.name for path in there])

        monkeypatch.setattr(publishing, "keep_checkpoint", keep)
        monkeypatch.setattr(flow, "on_cluster", on_cluster)
        monkeypatch.setattr(flow, "evaluate_once", evaluate)
        monkeypatch.setattr(flow, "say", lambda text: None)
        flow.train(run)
        return found

    return trained


def test_versions_that_are_evaluated_have_checkpoints_where_the_best_are_kept(evaluated):
    """Also where iterations make no version, so that the two are counted apart."""
    assert evaluated(every=4, keep_best=1) == {
        "before": (0, []),
        "iteration-0003": (1, ["v0001"]),
        "iteration-0006": (3, ["v0001", "v0003"]),
        "after": (6, ["v0001", "v0003", "v0004", "v0006"]),
    }


@pytest.mark.parametrize("settings", [{}, {"keep_best": 1, "best_by": "reward/mean"}])
def test_versions_that_are_evaluated_have_none_by_that_alone(settings, evaluated):
    assert evaluated(every=4, **settings) == {
        "before": (0, []),
        "iteration-0003": (1, []),
        "iteration-0006": (3, []),
        "after": (6, ["v0004", "v0006"]),
    }
