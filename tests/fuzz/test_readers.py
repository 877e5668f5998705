"""Whatever a file holds, whoever reads it returns, or raises what its docstring says, in one line.

`make fuzz` looks for minutes (MINUTES) with new seeds, and keeps what it finds in `cases/`, where
the tests of every change read it again.
"""

import os
import random
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time

import pytest
from fuzz.readers import READERS, Reader
from hypothesis import HealthCheck, Phase, given, seed, settings

from deployments.errors import one_line

CASES = Path(__file__).parent / "cases"
SECONDS = 60 * float(os.environ.get("FUZZ_MINUTES", "0"))
MOST_SECONDS = 30.0  # of the processor, that a file of some kB may take to read
QUICK = 40  # documents of each reader in the tests of every change


def read(reader: Reader, content: bytes) -> None:
    """Read a document, and check what comes of it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / reader.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        started, said = process_time(), "all is well"
        try:
            reader.read(Path(folder))
        except reader.errors as error:
            said = one_line(str(error))
        assert said, "an error without a word"
        assert process_time() - started < MOST_SECONDS


def looked_at(name: str, number: int, max_examples: int) -> None:
    """Read damaged documents drawn from a seed, and keep the smallest that breaks the reader."""
    reader, found = READERS[name], []

    @seed(number)
    @settings(
        max_examples=max_examples,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(reader.damaged)
    def look(content: bytes) -> None:
        try:
            read(reader, content)
        except BaseException:
            found[:] = [content]
            raise

    try:
        look()
    except BaseException:
        if SECONDS and found:
            digest = sha256(found[0]).hexdigest()[:12]
            (CASES / f"{name}-{digest}").write_bytes(found[0])
        raise


@pytest.mark.parametrize("name", READERS)
def test_what_is_well_is_read(name):
    for content in READERS[name].wells:
        with TemporaryDirectory() as folder:
            path = Path(folder) / READERS[name].file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            READERS[name].read(Path(folder))


@pytest.mark.parametrize("name", READERS)
def test_what_is_damaged_is_one_line(name):
    if not SECONDS:
        looked_at(name, 0, QUICK)
        return
    deadline = monotonic() + SECONDS / len(READERS)
    while monotonic() < deadline:
        looked_at(name, random.SystemRandom().getrandbits(64), 500)


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_finds_stay_mended(case):
    read(READERS[case.partition("-")[0]], (CASES / case).read_bytes())
