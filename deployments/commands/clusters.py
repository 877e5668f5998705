"""Commands that look at clusters, and print how their workers are started."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from digen_core.errors import UserError
from digen_core.transport.files import replace_text


def show(
    cluster: str,
    /,
    *,
    way: Annotated[
        Literal["ssh", "cuda", "slurm", "kubernetes"] | None, Parameter(name="--for")
    ] = None,
    tls: bool = True,
    out: Path | None = None,
) -> int:
    """Print the devices of a cluster file, or what starts its workers elsewhere.

    Example: digen cluster show 8x-h100 --for slurm --out jobs

    Args:
        cluster: A name in deployments/clusters, or a TOML file like those.
        way: ssh: a script that starts each worker on its host; cuda: one that lets dask-cuda start
            a worker for each GPU of a host; slurm: a job array for each group, and a job for
            each gang on several hosts; kubernetes: what the Dask operator takes, and indexed jobs
            for such gangs. Scripts use what 'digen up --host' left in runs/up/env.
        tls: Whether the parts of Dask use TLS, as 'digen up' was told. Without it whoever reaches a
            worker can run code there.
        out: Folder to write the files to, instead of printing them.
    """
    from deployments.shipped import find_cluster

    found = find_cluster(cluster)
    if way is None:
        if out is not None:
            raise UserError(f"--out is {out}, but a table is printed; say what to write by --for")

        from deployments.views.cluster_table import print_cluster

        print_cluster(found)
        return 0

    from deployments.operation.launching import files_for

    files = files_for(found, way, tls)
    if out is not None:
        _write(files, out)
    for name, text in files.items():
        if out is not None:
            sys.stdout.write(f"{out / name}\n")
        else:
            sys.stdout.write(f"# {name}\n{text}\n" if len(files) > 1 else text)
    return 0


def _write(files: Mapping[str, str], folder: Path) -> None:
    """Write files into a folder, each whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace_text(folder / name, text)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
