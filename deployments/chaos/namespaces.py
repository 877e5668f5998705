"""Namespaces of Linux: a network, a disk and process ids of a story's own, without any rights.

Where there are none, stories have no faults of links and disks.
"""

import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

from deployments.chaos.story import ISOLATED, KINDS, Kind

ISOLATE: Final = (
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
DISK_BYTES: Final = 512 << 20
_LOCAL: Final = 100  # preference of the rule that finds this machine, behind those of cuts
_CUT: Final = 10


def are_there() -> bool:
    """Say whether namespaces and the commands for them are there."""
    if not all(shutil.which(command) for command in ("unshare", "mount", "umount", "ip")):
        return False
    command = [*ISOLATE, "sh", "-c", f"ip link set lo up && ip rule add pref {_CUT} blackhole"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def possible(kinds: Collection[Kind]) -> list[Kind]:
    """Return those kinds of faults that this machine lets us do."""
    isolated = are_there()
    return [kind for kind in KINDS if kind in kinds and (isolated or kind not in ISOLATED)]


def prepare_network() -> None:
    """Let this namespace's processes reach one another, and rules come before that."""
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "rule", "add", "pref", str(_LOCAL), "lookup", "local")
    _run("ip", "rule", "del", "pref", "0")


def mount_disk(folder: Path) -> None:
    """Give a folder a small disk of its own, in memory."""
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "digen-chaos", str(folder))


def make_read_only(folder: Path) -> None:
    """Refuse to write below a folder to all who open something there from now on."""
    _run("mount", "--bind", str(folder), str(folder))
    _run("mount", "-o", "remount,bind,ro", str(folder))


def make_writable(folder: Path) -> None:
    """Undo `make_read_only`."""
    _run("umount", "--lazy", str(folder))


def lose_packets(port: int) -> None:
    """Lose all TCP packets from and to a port, silently."""
    for side in ("sport", "dport"):
        _run("ip", "rule", "add", "pref", str(_CUT), "ipproto", "tcp", side, str(port), "blackhole")


def lose_no_packets() -> None:
    """Undo `lose_packets`, of all ports."""
    while (
        subprocess.run(["ip", "rule", "del", "pref", str(_CUT)], capture_output=True).returncode
        == 0
    ):
        pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
