"""Pickles of the calls that the lean runner sends to a worker.

Two things are replaced on the way, because pickling them by value is slow, wrong or impossible:
    futures    become an index into the upstream states, which Dask passes as arguments (and moves
               from worker to worker), at whatever depth of the parameters they sit;
    functions  behind a ``@task``, ``@flow`` or ``@body`` of an installed digen package become
               their import path. Plain cloudpickle would copy them with every module global they
               name, since their name refers to the Task and not to the function.
"""

import io
import pickle
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FunctionType
from typing import Any

import cloudpickle
from distributed import Future
from prefect_dask.task_runners import PrefectDaskFuture

INSTALLED_PACKAGES = ("deployments", "digen_core", "flows", "tasks")
"""Packages that every worker can import."""


def dump_call(call: Any) -> tuple[bytes, list[Future[Any]]]:
    """Return ``call`` as bytes and the Dask futures found in it, in the order of their indices."""
    stream = io.BytesIO()
    pickler = _CallPickler(stream)
    pickler.dump(call)
    return stream.getvalue(), list(pickler.futures.values())


def load_call(blob: bytes, upstream: Sequence[Any]) -> Any:
    """Return the object behind ``blob`` with ``upstream`` values in the place of the futures."""
    unpickler = _CallUnpickler(io.BytesIO(blob))
    unpickler.upstream = upstream
    return unpickler.load()


class _CallPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, stream: io.BytesIO):
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.futures: dict[Any, Future[Any]] = {}
        self._indices: dict[Any, int] = {}

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        if isinstance(obj, PrefectDaskFuture):
            obj = obj.wrapped_future
        if isinstance(obj, Future):
            self.futures.setdefault(obj.key, obj)
            return "upstream", self._indices.setdefault(obj.key, len(self._indices))
        if isinstance(obj, FunctionType) and _is_decorated_and_installed(obj):
            return "function", obj.__module__, obj.__qualname__
        return None


class _CallUnpickler(pickle.Unpickler):
    upstream: Sequence[Any]

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        match pid:
            case ("upstream", index):
                return self.upstream[index]
            case ("function", module, name):
                import_module(module)
                return _find(module, name).fn
        raise pickle.UnpicklingError(f"unknown persistent id {pid!r}")


def _is_decorated_and_installed(function: FunctionType) -> bool:
    if function.__module__.partition(".")[0] not in INSTALLED_PACKAGES:
        return False
    return getattr(_find(function.__module__, function.__qualname__), "fn", None) is function


def _find(module: str, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    return found
