"""Namespaces of Linux: a network, a disk and process ids of a story's own, without any rights.

Where there are none, stories have no faults of links and disks.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

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


def lose_packets(port: int, cut: int) -> None:
    """Lose all TCP packets from and to a port, silently, in a cut: the first has the number 0."""
    rule = ("ip", "rule", "add", "pref", str(_CUT + cut), "ipproto", "tcp")
    for side in ("sport", "dport"):
        _run(*rule, side, str(port), "blackhole")


def end_cut(cut: int) -> None:
    """Undo `lose_packets`, of all ports of a cut."""
    one = ["ip", "rule", "del", "pref", str(_CUT + cut)]
    while subprocess.run(one, capture_output=True, check=False).returncode == 0:
        pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
