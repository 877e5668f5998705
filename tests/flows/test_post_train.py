"""Which runs of a flow are new: what these are refused for does not end those that go on."""

from pathlib import Path

import pytest

from digen_core.checkpoints.manifest import LINEAGE_OF_RUN, Lineage
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from flows import post_train as flow

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
