"""Garbage collection is rare while a process imports, and left out at its end."""

import subprocess
import sys

import pytest

CODE = """
import atexit, gc
from tasks.cluster.garbage import THRESHOLDS, collect_rarely
{call}
print(gc.get_threshold() == THRESHOLDS)
looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
before = len(looks)
kept = [[n] for n in range(20_000)]
print(len(looks) == before)
atexit._run_exitfuncs()
print(gc.get_freeze_count() > 20_000)
"""


@pytest.mark.parametrize(("call", "told"), [("collect_rarely()", "True"), ("", "False")])
def test_it_is_rare_and_not_at_the_end(call, told):
    code = CODE.format(call=call)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == [told] * 3, ran.stderr
