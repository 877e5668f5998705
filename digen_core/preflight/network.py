"""Pre-flight checks of places: folders that can be written to, addresses at which one answers."""

import os
import re
import socket
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from digen_core.errors import ConfigError
from digen_core.inputs.reading import require_file, shown

_TRACKING: Final = frozenset(
    {"", "file", "http", "https", "databricks", "uc", "sqlite", "postgresql", "mysql", "mssql"}
)
"""Schemes of addresses that MLflow knows without plugins."""
_DASK: Final = frozenset({"", "tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc"})
_SQLITE_HEAD: Final = b"SQLite format 3\0"
_TIMEOUT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0  # a busy server takes some
_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>\w+)://)?\[?(?P<host>[^\s/\[\]]+)\]?:(?P<port>\d{1,5})/?"
)


def check_writable(label: str, folder: Path) -> None:
    """Check that files can be made in a folder, which may be missing.

    Args:
        label: the key and its value, for the error.
        folder: to write to.

    Raises:
        ConfigError: they cannot.
    """
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if existing.is_symlink() and not existing.exists():
        raise ConfigError(f"{label}, but the link {existing} leads nowhere")
    if not existing.is_dir():
        raise ConfigError(f"{label}, but {existing} is a file")
    try:
        with TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        raise ConfigError(f"{label}, but {existing} is not writable: {error.strerror}") from error


def check_scheduler(label: str, address: str) -> None:
    """Check that something listens where a Dask scheduler is to be.

    Args:
        label: where the address is from, for the error.
        address: such as tcp://10.0.0.1:8786; of other protocols than TCP only its form is checked.

    Raises:
        ConfigError: nothing does, or it is no address.
    """
    found = parse_address(label, address)
    if (found["scheme"] or "tcp") not in ("tcp", "tls"):
        return
    if why := why_silent(found["host"], int(found["port"])):
        raise ConfigError(
            f"{label} is {address}, but nothing answers there ({why}); start the scheduler, or "
            "correct the address"
        )


def why_silent(host: str, port: int) -> str:
    """Return why nothing can be reached at a port; empty: something can."""
    try:
        socket.create_connection((host, port), _TIMEOUT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return str(error) or type(error).__name__
    return ""


def parse_address(label: str, address: str) -> dict[str, str]:
    """Return scheme, host and port of an address of Dask.

    Raises:
        ConfigError: it has none, or Dask does not know the scheme.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(f"{label} is {address!r}; use an address such as tcp://10.0.0.1:8786")
    parts = found.groupdict(default="")
    if parts["scheme"] not in _DASK:
        raise ConfigError(
            f"{label} is {address}, but Dask knows no {parts['scheme']}://; use tcp:// or tls://"
        )
    return parts


def check_tracking(label: str, uri: str) -> None:
    """Check that an address is one that MLflow knows, and that a server listens if it names one.

    Args:
        label: where the address is from, for the error.
        uri: of MLflow; a path is a folder.

    Raises:
        ConfigError: it is none, or none does.
    """
    try:
        scheme = urlsplit(uri).scheme.partition("+")[0] if ":" in uri else ""
    except ValueError as error:  # half of the brackets of an address of IPv6
        raise ConfigError(f"{label} is {uri}: {error}; correct it") from error
    plugins = {point.name for point in entry_points(group="mlflow.tracking_store")}
    if scheme not in _TRACKING | plugins:
        raise ConfigError(
            f"{label} begins with {shown(scheme)}:, which MLflow does not know; use http(s)://, "
            "a database such as sqlite:///runs/mlflow.db, or databricks"
        )
    if scheme in ("http", "https") and not urlsplit(uri).hostname:
        raise ConfigError(f"{label} is {uri}, which names no machine; use http://HOST:PORT")
    if scheme in ("", "file") and not uri.startswith("databricks"):
        _check_folder_of_mlflow(label, uri)
    elif scheme in ("sqlite", "postgresql", "mysql", "mssql"):
        _check_database(label, uri)
    check_server(label, uri)


def check_database_beside(label: str, folder: Path) -> None:
    """Check that an address can name MLflow's database in a folder.

    Args:
        label: the key of the folder and its value, for the error.
        folder: of the runs.

    Raises:
        ConfigError: it cannot; the database would be made elsewhere.
    """
    path = str(folder.resolve())
    if "?" in path or unquote(path) != path:
        raise ConfigError(
            f"{label}, but MLflow's database cannot be in {path}, as ? and % mean something else "
            "in its address; use another folder, or set tracking.mlflow_uri (MLFLOW_TRACKING_URI)"
        )


def _check_folder_of_mlflow(label: str, uri: str) -> None:
    """Check that MLflow may keep what it has in a folder, which it does no more by itself."""
    if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        raise ConfigError(
            f"{label} is {uri}, a folder, which MLflow does not take any more; use a database such "
            "as sqlite:///runs/mlflow.db, or a server (http://HOST:PORT)"
        )


def _check_database(label: str, uri: str) -> None:
    """Check that a database has its driver, and that one that is a file is none of another kind."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(uri)
        found.get_dialect().import_dbapi()
    except (ArgumentError, ImportError, ValueError) as error:  # ValueError: of a port
        raise ConfigError(f"{label} is {uri}: {error}; correct it, or install that") from error
    if not found.drivername.startswith("sqlite"):
        return
    if not found.database or found.database == ":memory:":
        raise ConfigError(f"{label} is {uri}, which is no file; use one: sqlite:///runs/mlflow.db")
    file = Path(found.database)
    if not file.exists():
        return
    require_file(file, "MLflow's database")
    with file.open("rb") as opened:
        head = opened.read(len(_SQLITE_HEAD))
    if head and head != _SQLITE_HEAD:
        raise ConfigError(f"{label} is {uri}, but {file} is no database of SQLite; name another")


def check_server(label: str, url: str) -> None:
    """Check that a web server answers, whatever it says; of other addresses nothing is known.

    Args:
        label: where the address is from, for the error.
        url: of the server.

    Raises:
        ConfigError: none does.
    """
    if not url.startswith(("http://", "https://")):
        return
    try:
        bare = httpx.URL(url).copy_with(username=None, password=None)
        if getproxies().keys() & {bare.scheme, "all"} and not proxy_bypass(bare.host):
            return  # the proxy would answer
        # It is not known yet who listens: no password is sent, and no name checked.
        timeout = httpx.Timeout(_TIMEOUT_SECONDS, read=ANSWER_SECONDS)
        httpx.head(bare, timeout=timeout, verify=False, trust_env=False)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ConfigError(
            f"{label} is {bare}, but no server answers there ({error}); start it, or correct the "
            "address"
        ) from error
    except httpx.InvalidURL as error:
        raise ConfigError(f"{label} is no address: {error}; correct it") from error
    except httpx.ReadTimeout as error:
        raise ConfigError(
            f"{label} is {bare}; the server there takes connections, but has not answered for "
            f"{ANSWER_SECONDS:g} s; start it again, or correct the address"
        ) from error
    except httpx.HTTPError:
        return  # it wants something else; those who use it will see
