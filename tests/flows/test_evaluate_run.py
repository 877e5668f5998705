"""Which version is evaluated where the newest is damaged."""

from types import SimpleNamespace

import pytest

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, DamagedError, name_of_state
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.run import RunConfig
from digen_core.preflight.run import check_judged
from flows import evaluate_run as flow
from support.checkpoints import position_of, state_of


@pytest.fixture
def checkpoints(tmp_path):
    """Two of a run, whose second is cut off."""
    folder = tmp_path / CHECKPOINTS_OF_RUN
    paths = [write_checkpoint(folder, state_of(v), position_of(v)) for v in (1, 2)]
    cut_off(paths[1])
    return paths


def cut_off(checkpoint):
    (checkpoint / name_of_state(0, 1)).write_bytes(b"")


def test_it_is_told_that_an_older_version_is_evaluated(checkpoints, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(flow, "notify", lambda run, event, text: told.append(text))
    run = SimpleNamespace(run_dir=tmp_path, progress=SimpleNamespace(damaged=()))
    flow.tell_of_damaged(run)
    (text,) = told
    assert text.startswith(f"checkpoint {checkpoints[1]} is damaged: ")
    assert text.endswith("; the one before is evaluated")
    assert flow.newest_checkpoint(run) == checkpoints[0]


def test_a_run_without_a_whole_version_is_refused_before_anything_starts(checkpoints, tmp_path):
    cut_off(checkpoints[0])
    with pytest.raises(DamagedError, match=r"v0002 is damaged: "):
        check_judged(RunConfig(), tmp_path, None)
