"""Bodies: the functions that do a run's work, each a Prefect task that sends a receipt."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Generic, ParamSpec, TypeVar

from prefect import State, Task
from prefect import task as prefect_task
from prefect.results import ResultRecord
from pydantic import TypeAdapter

from tasks.receipts import FactsT, FactsT_co, Receipt, attach, read

ONCE: Final[dict[str, Any]] = {"retries": 0, "persist_result": False}
"""Options of the flows and tasks of a run. What the user has set for others would begin a failed
run anew, rather than resume it, do twice what changes a worker, take what was done before for done
where the workers are others, or write each sample into Prefect's storage."""

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Body(Generic[P, R_co, FactsT_co]):
    """A function that returns a result, which stays on its worker, and facts, which do not.

    Called, it is that function; submitted as its Prefect task, its facts go on the receipt.
    """

    function: Callable[P, tuple[R_co, FactsT_co]]
    task: Task[P, R_co]
    facts: TypeAdapter[FactsT_co]

    def __call__(self, *arguments: P.args, **parameters: P.kwargs) -> tuple[R_co, FactsT_co]:
        """Return the result and the facts."""
        return self.function(*arguments, **parameters)

    def __repr__(self) -> str:
        return f"Body({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.task.name

    @property
    def fn(self) -> Callable[P, R_co]:
        """Function of the task; workers find it by this name, see `tasks.runner.pickling`."""
        return self.task.fn

    def read(self, receipt: bytes) -> Receipt[FactsT_co]:
        """Return what a task of this body sent.

        Raises:
            ReceiptError: that is something else.
        """
        return read(receipt, self.facts)


def body(
    name: str, facts: type[FactsT]
) -> Callable[[Callable[P, tuple[R, FactsT]]], Body[P, R, FactsT]]:
    """Make a function, whose second parameter is the label of a task run, a body.

    Args:
        name: of the task.
        facts: that it returns beside its result.
    """

    def make(function: Callable[P, tuple[R, FactsT]]) -> Body[P, R, FactsT]:
        @wraps(function)
        def attaching(*arguments: P.args, **parameters: P.kwargs) -> R:
            result, found = function(*arguments, **parameters)
            attach(found)
            return result

        task = prefect_task(name=name, task_run_name="{label}", **ONCE)(attaching)
        return Body(function, task, TypeAdapter(facts))

    return make


def value_of(state: "State[Any]") -> Any:
    """Return what a task run returned, or raised, by its final state."""
    return state.data.result if isinstance(state.data, ResultRecord) else state.data
