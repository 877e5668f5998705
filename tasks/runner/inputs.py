"""Give a task body its inputs past Prefect, which would walk through every array and block of them.

Prefect's engine visits each parameter several times, to the last item of the last container, in
search of futures: 15 ms for a train task with its transitions and gradient sum. Here the runner has
found the futures already and Dask has brought their states, so the values travel through the engine
as opaque objects and are revealed when the body is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from prefect import State, Task
from prefect.client.schemas.objects import RunInput, TaskRunResult
from prefect.results import ResultRecord

PLAIN = (str, int, float, bool, bytes, type(None))


class _Opaque:
    """A value that Prefect has no reason to look into."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Inputs:
    """The parameters of a task as its engine gets them, and the runs that they come from."""

    parameters: dict[str, Any]
    runs: dict[str, set[RunInput]]  # by parameter; those that the engine cannot see


def hidden(parameters: dict[str, Any], upstream: Sequence[Any]) -> Inputs:
    """Return parameters with their states resolved and everything but plain values opaque.

    They are returned as they are if Prefect has to look at them: an upstream task did not
    complete, or a state sits deeper than in lists, tuples and dicts.
    """
    if not all(isinstance(state, State) and state.is_completed() for state in upstream):
        return Inputs(parameters, {})
    values: dict[str, Any] = {}
    runs: dict[str, set[RunInput]] = {}
    found: set[int] = set()
    for name, value in parameters.items():
        states: list[State] = []
        shown = _resolved(value, states)
        values[name] = shown if isinstance(shown, PLAIN) else _Opaque(shown)
        found.update(map(id, states))
        ids = {state.state_details.task_run_id for state in states}
        if ids:
            runs[name] = {TaskRunResult(id=run_id) for run_id in ids}
    if len(found) != len({id(state) for state in upstream}):
        return Inputs(parameters, {})
    return Inputs(values, runs)


def revealing(task: Task[Any, Any]) -> Task[Any, Any]:
    """Return a copy of a task whose body gets the values behind opaque parameters."""
    copy = task.with_options()
    copy.fn = _revealing(task.fn)
    return copy


def _revealing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **parameters: Any) -> Any:
        shown = {name: _shown(value) for name, value in parameters.items()}
        return function(*map(_shown, arguments), **shown)

    return call


def _shown(value: Any) -> Any:
    return value.value if isinstance(value, _Opaque) else value


def _resolved(value: Any, states: list[State]) -> Any:
    """Return a value with the data of the states in it, which are added to the list."""
    match value:
        case State():
            states.append(value)
            data = value.data
            return data.result if isinstance(data, ResultRecord) else value.result()
        case list():
            return [_resolved(item, states) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(_resolved(item, states) for item in value)
        case dict():
            return {key: _resolved(item, states) for key, item in value.items()}
    return value
