"""The memory of a run: when its event log is written, and what happens if it cannot be."""

import pytest

from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from digen_core.eventlog.file import EVENTS_OF_RUN, ask, read_log
from digen_core.eventlog.recorder import Recorder
from flows.runtime.memory import Memory
from flows.runtime.observers import watching
from support.contexts import SPLIT, run_context
from support.random_cluster import make_costs, make_workload
from support.runs import Watch


class Warned(Watch):
    def __init__(self):
        super().__init__()
        self.warnings = []

    def on_warning(self, text):
        self.warnings.append(text)


@pytest.fixture
def memory(tmp_path) -> Memory:
    controller = Controller(SPLIT, make_workload(), Schedule(LAYOUTS["gap"]), make_costs())
    return Memory(run_context(tmp_path), Recorder(controller))


def test_who_asks_is_answered_once(memory, tmp_path):
    memory.look()
    assert not (tmp_path / EVENTS_OF_RUN).exists()
    request = ask(tmp_path)
    memory._next_look = 0.0
    memory.look()
    assert not request.exists()
    log = read_log(tmp_path)
    assert (log.run, log.why) == ("run", "digen explain asked")


def test_it_looks_once_a_second(memory, tmp_path):
    memory.look()
    request = ask(tmp_path)
    for _ in range(10):
        memory.look()
    assert request.exists()


def test_a_run_goes_on_if_its_log_cannot_be_written(memory, tmp_path):
    (tmp_path / EVENTS_OF_RUN).symlink_to(tmp_path.parent / "elsewhere")
    with watching(warned := Warned()):
        memory.write("it failed")
    (text,) = warned.warnings
    assert text.startswith(f"cannot write {tmp_path / EVENTS_OF_RUN}: ")
    assert "leads out of" in text
    assert not (tmp_path.parent / "elsewhere").exists()


def test_a_run_whose_folder_is_gone_ends_as_it_would(memory, tmp_path):
    tmp_path.rmdir()
    with watching(warned := Warned()):
        memory.write("it failed")
    assert len(warned.warnings) == 1
