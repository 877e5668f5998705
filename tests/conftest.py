import gc
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import digen_core  # noqa: F401, before Prefect: it prepares the environment
from tasks.cluster.garbage import collect_rarely

collect_rarely()

# A busy machine may stop a test for a moment; that says nothing about the code.
settings.register_profile("thorough", deadline=None)  # make test-nightly
settings.register_profile("daily", max_examples=30, deadline=None)
settings.register_profile("fast", max_examples=20, deadline=None)  # make test-fast
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "daily"))

# Each client of Prefect reads all authorities of certificates, which takes 20 ms; none is asked.
os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).with_name("support") / "authority.pem"))

# As the command line has it: whichever test imports transformers first would show its warnings.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


SLICED = ({"operation"}, {"layouts", "algorithms", "families"}, {"nightly"})
"""Marks of what CI does not run whole; of a slice each of the three has a third."""
NIGHTLY_SECONDS = 600
"""How long a nightly test may take: twice as long as others, on a busy machine as well."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take a slice: it runs some of what ``make test`` leaves out, and nothing else."""
    parser.addoption(
        "--slice", metavar="SEED:COUNT", help="only this many cases of the slow suites"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those of ``-m gpu``: the others are the same on any machine."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # marks are chosen by after this
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix what waits with what computes, or keep a slice: cases that hash lowest with its seed.

    Nightly tests get more time, but for those that say how much they need.
    """
    for item in items:
        if item.get_closest_marker("nightly") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(NIGHTLY_SECONDS))
    _leave_to_ci(items)
    if not (slice_ := config.getoption("--slice")):
        _mix(items)
        return
    seed, _, count = slice_.rpartition(":")
    kept: set[pytest.Item] = set()
    left = sorted(items, key=lambda item: sha256(f"{seed} {item.nodeid}".encode()).digest())
    for place, marks in enumerate(SLICED):
        some = dict.fromkeys(item for item in left if any(map(item.get_closest_marker, marks)))
        kept.update([*some][: (int(count) + place) // len(SLICED)])
        left = [item for item in left if item not in some]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _leave_to_ci(items: list[pytest.Item]) -> None:
    """Mark as ``ci`` all cases of a test that is marked ``ci_but_one``, but for its first one.

    The first is that which ``make test`` has: those that it leaves out anyway do not count.
    """
    others = {"ci", "gpu"}.union(*SLICED)
    begun: set[str] = set()
    for item in items:
        if not item.get_closest_marker("ci_but_one") or any(map(item.get_closest_marker, others)):
            continue
        name = item.nodeid.partition("[")[0]
        if name in begun:
            item.add_marker(pytest.mark.ci)
        begun.add(name)


def _mix(items: list[pytest.Item]) -> None:
    """Put files with slow tests between the others, and only others at the end.

    Files are dealt to processes in this order. Slow tests wait for servers and workers much of
    their time, others compute: cores are busy if some processes are at each. No process is to be
    left alone with a long file at the end.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    paths = dict.fromkeys(item.path for item in items)
    others = [path for path in paths if path not in slow]
    after_each = max(1, 3 * len(others) // (4 * max(1, len(slow))))
    places = {path: (place, 0) for place, path in enumerate(own for own in paths if own in slow)}
    places |= {path: (place // after_each, 1) for place, path in enumerate(others)}
    items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Leave out of garbage collections what was imported: each took a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_look_through() -> Iterator[None]:
    """Leave out of later collections what a module's tests leave: each engine begins with one."""
    yield
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU is here, or it is hidden: make test-gpu")


@pytest.fixture
def caplog(caplog):
    """Capture warnings, too: a cluster that tests share silences the handlers that it finds."""
    caplog.handler.setLevel(logging.NOTSET)
    return caplog


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory) -> Iterator[None]:
    """MLflow's tables as copies of those of one database, whose making takes a second."""
    import sqlalchemy
    from mlflow.store.db import utils

    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/made.db")
    utils._initialize_tables(made)

    def copy(engine: sqlalchemy.Engine) -> None:
        source, target = made.raw_connection(), engine.raw_connection()
        source.driver_connection.backup(target.driver_connection)
        source.close()
        target.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", copy)
        yield


@pytest.fixture(scope="session")
def prefect_tables(request, tmp_path_factory) -> Any:
    """What a Prefect server makes of an empty database, for those that begin with one."""
    from support.prefect_tables import Tables

    cache = getattr(request.config, "cache", None)  # of pytest; None: it is to keep nothing
    return Tables(cache.mkdir("prefect") if cache else tmp_path_factory.mktemp("prefect_tables"))


@pytest.fixture(scope="session")
def prefect_backend(mlflow_tables, prefect_tables) -> Iterator[None]:
    """A Prefect server with a database of its own, for all tests that run flows.

    It spends its time on what a command's own server does.
    """
    from prefect.testing.utilities import prefect_test_harness

    from deployments.operation.prefect_server import COMMAND_SETTINGS, RECORDER_SETTINGS

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**COMMAND_SETTINGS, **RECORDER_SETTINGS}.items():
            patch.setenv(name, value)
        harness = prefect_test_harness(server_startup_timeout=120)
        with ExitStack() as ending:
            with prefect_tables.in_harness():
                ending.enter_context(harness)
            yield


@pytest.fixture(scope="session")
def dask_cluster() -> Iterator[Any]:
    """Two workers as threads of this process: real scheduling, no ports, no GPUs."""
    from support.clusters import threads_cluster

    with threads_cluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tiny_flux(tmp_path_factory) -> str:
    """Folder of a FLUX pipeline with random weights, a few thousand parameters."""
    import torch

    from digen_core.models.tiny.flux import build_tiny_flux

    folder = tmp_path_factory.mktemp("tiny_flux")
    torch.manual_seed(0)
    build_tiny_flux(width=32, num_layers=1, num_single_layers=1).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_families(tmp_path_factory) -> dict[str, str]:
    """Folder of a tiny pipeline with random weights, by family and, of its kinds, FAMILY-KIND."""
    from digen_core.models.tiny.pipelines import build_tiny
    from support.families import FAMILIES, KINDS, family_of, kind_of

    folders = {}
    for model in (*FAMILIES, *KINDS):
        folder = tmp_path_factory.mktemp(f"tiny_{model}")
        build_tiny(family_of(model), kind=kind_of(model)).save_pretrained(folder)
        folders[model] = str(folder)
    return folders
