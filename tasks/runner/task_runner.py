"""A Prefect task runner for an existing Dask cluster that costs a few milliseconds per task.

What the stock ``DaskTaskRunner`` does, this does: Prefect's task engine runs on the Dask worker,
futures passed as parameters become edges of the Dask graph, workers report states to the server.
It leaves out what the stock one repeats for every task:
    - the context of a flow run is serialised once, and sent without the flow's function;
    - a worker process builds that context once (`tasks.runner.context`);
    - a task run is not reported as pending, and as running only if it takes a while
      (`tasks.runner.running`);
    - tasks that do not persist their results compute no cache key;
    - one Dask client serves a flow run and its subflows.
"""

import hashlib
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

from distributed import Client, get_worker
from prefect.cache_policies import DEFAULT, NO_CACHE
from prefect.client.schemas.objects import RunInput
from prefect.context import FlowRunContext, TagsContext, TaskRunContext, serialize_context
from prefect.flows import Flow
from prefect.futures import PrefectFuture
from prefect.settings.context import get_current_settings
from prefect.task_runners import TaskRunner
from prefect.tasks import Task
from prefect.utilities.engine import collect_task_run_inputs_sync
from prefect_dask.task_runners import PrefectDaskFuture

from tasks.runner.completions import Inbox, catching
from tasks.runner.entry import run_task
from tasks.runner.pickling import dump_call

MAX_CACHED = 64


@dataclass
class _Session:
    """A Dask client with what the runners that share it keep."""

    client: Client
    owned: bool
    inbox: Inbox
    num_users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    contexts: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    tasks: OrderedDict[Any, Any] = field(default_factory=OrderedDict)


_sessions: dict[str, _Session] = {}
_sessions_lock = threading.Lock()


@contextmanager
def shared_client(cluster: str | Client) -> Iterator[Client]:
    """Share one Dask client per scheduler address among all runners of this process.

    Args:
        cluster: Address of a scheduler: the first user connects, the last one disconnects. Or a
            connected client, which stays its owner's to close.
    """
    with _session(cluster) as session:
        yield session.client


@contextmanager
def _session(cluster: str | Client) -> Iterator[_Session]:
    if isinstance(cluster, str):
        address, owned = cluster, True
    else:
        assert cluster.scheduler is not None, "the client is connected"
        address, owned = str(cluster.scheduler.address), False
    with _sessions_lock:
        session = _sessions.get(address)
        if session is None or session.client.status == "closed":
            client = Client(cluster, set_as_default=False) if isinstance(cluster, str) else cluster
            session = _sessions[address] = _Session(client, owned, Inbox(client))
        session.num_users += 1
    try:
        yield session
    finally:
        with _sessions_lock:
            session.num_users -= 1
            last = session.num_users == 0
            if last and _sessions.get(address) is session:
                del _sessions[address]
        if last and session.owned:
            session.client.close()


class LeanDaskTaskRunner(TaskRunner[PrefectDaskFuture[Any]]):
    """Runs the tasks of a flow on the Dask cluster at ``address``.

    ``dask.annotate(workers=, resources=, priority=, retries=)`` around a submit is honoured.
    The Dask key of a task run is ``<task name>-<task run id>``.
    """

    def __init__(self, address: str):
        super().__init__()  # type: ignore[no-untyped-call]
        self.address = address
        self._stack = ExitStack()
        self._open: _Session | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeanDaskTaskRunner) and self.address == other.address

    __hash__ = None  # type: ignore[assignment]

    def duplicate(self) -> Self:
        """Return a runner for the same cluster; it shares the client of this one."""
        return type(self)(self.address)

    def __enter__(self) -> Self:
        super().__enter__()
        if not _is_dask_worker():  # there it waits for a first nested submit
            self._connect()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._open = None
        self._stack.close()
        super().__exit__(*exc_info)

    @property
    def client(self) -> Client:
        """The Dask client, shared with the other runners for this address."""
        return self._connect().client

    @property
    def inbox(self) -> Inbox:
        """Where the receipts of this runner's tasks arrive."""
        return self._connect().inbox

    def _connect(self) -> _Session:
        if not self._started:
            raise RuntimeError("The task runner must be started before submitting work.")
        if self._open is None:
            self._open = self._stack.enter_context(_session(self.address))
        return self._open

    def submit(
        self,
        task: Task[Any, Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> PrefectDaskFuture[Any]:
        """Submit one task run and return its future."""
        session = self._connect()
        task_run_id = uuid4()
        key, context = _context_of(session)
        completions = catching(session.inbox)
        call, upstream = dump_call(
            (  # the fields of runner_engine.Call
                task_run_id,
                parameters,
                wait_for,
                _known_inputs(parameters, dependencies),
                _own_tags(),
                key,
                session.inbox.topic if completions else None,
            )
        )
        if completions:
            completions.expect(task_run_id)
        future = session.client.submit(
            run_task,
            call,
            _task_blob(session, task),
            context,
            *upstream,
            key=f"{task.name}-{task_run_id}",
            pure=False,
        )
        wrapped = PrefectDaskFuture[Any](task_run_id=task_run_id, wrapped_future=future)
        if completions:
            completions.track(wrapped)
        return wrapped


def _own_tags() -> tuple[str, ...]:
    """Return the tags of a task run that are not its flow run's: each costs calls to the server."""
    context = FlowRunContext.get()
    inherited = context.flow_run.tags if context and context.flow_run else []
    return tuple(TagsContext.get().current_tags.difference(inherited))


def _known_inputs(
    parameters: dict[str, Any], passed: dict[str, set[RunInput]] | None
) -> dict[str, set[RunInput]]:
    """Return the upstream runs that only this process knows: results it fetched and passes on.

    Futures need no entry, for the worker sees their states.
    """
    context = FlowRunContext.get()
    inputs: dict[str, set[RunInput]] = {}
    if context is not None and context.run_results:
        for name, value in parameters.items():
            inputs[name] = set(collect_task_run_inputs_sync(value))
    for name, known in (passed or {}).items():
        inputs[name] = inputs.get(name, set()) | known
    return {name: known for name, known in inputs.items() if known and name in parameters}


def _task_blob(session: _Session, task: Task[Any, Any]) -> bytes:
    with session.lock:
        cached = session.tasks.get(id(task))
    if cached is not None and cached[0] is task:
        known: bytes = cached[1]
        return known
    blob, _ = dump_call(_without_cache(task))
    _keep(session, session.tasks, id(task), (task, blob))
    return blob


def _without_cache(task: Task[Any, Any]) -> Task[Any, Any]:
    """Spare a task the cache key that nobody would use, as its result is not persisted."""
    context = FlowRunContext.get()
    persisted = (
        task.persist_result
        or get_current_settings().tasks.default_persist_result
        or (context is not None and context.persist_result)
    )
    if persisted or type(task) is not Task or task.cache_policy != DEFAULT:
        return task
    return task.with_options(cache_policy=NO_CACHE)


def _context_of(session: _Session) -> tuple[tuple[str, str], bytes]:
    """Return the key and the blob of the context in which the caller runs."""
    flow_run, parent = FlowRunContext.get(), TaskRunContext.get()
    run = flow_run.flow_run if flow_run else None
    key = f"{run.id}-{run.run_count}" if run else "", str(parent.task_run.id) if parent else ""
    if not any(key):  # no run tells one caller from another
        blob = _context_blob()
        return ("", hashlib.sha256(blob).hexdigest()), blob
    with session.lock:
        known: bytes | None = session.contexts.get(key)
    if known is None:
        known = _context_blob()
        _keep(session, session.contexts, key, known)
    return key, known


def _context_blob() -> bytes:
    context = serialize_context()
    context["tags_context"] = {}  # they go with each call
    if flow := context["flow_run_context"].get("flow"):
        context["flow_run_context"]["flow"] = _shell_of(flow)
    blob, _ = dump_call(context)
    return zlib.compress(blob, level=1)


def _shell_of(flow: Flow[Any, Any]) -> Flow[Any, Any]:
    """Return a flow that looks the same to a task but is without its function.

    So a flow body may name what cannot be pickled.
    """
    return Flow(
        fn=_body_in_the_flow_process,
        name=flow.name,
        version=flow.version,
        task_runner=flow.task_runner,
        validate_parameters=False,
        persist_result=flow.persist_result,
        log_prints=flow.log_prints,
    )


def _body_in_the_flow_process() -> None:
    raise RuntimeError("a flow cannot be called through the context of its task on a worker")


def _keep(session: _Session, cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    with session.lock:
        cache[key] = value
        while len(cache) > MAX_CACHED:
            cache.popitem(last=False)


def _is_dask_worker() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True
