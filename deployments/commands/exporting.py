"""The command that writes what a run trained for other programs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from digen_core.inputs.text import printable

if TYPE_CHECKING:
    from digen_core.checkpoints.adapter import Adapter

HUB: Final = "hub"
Target = Literal["comfyui", "kohya", "hub"]


def export(
    run: Path,
    /,
    *,
    target: Annotated[Target, Parameter(name="--for")],
    out: Path | None = None,
    push: str | None = None,
) -> int:
    """Write a run's adapter for ComfyUI or kohya's scripts, or a folder for the Hugging Face hub.

    Example: digen export runs/shapes-20260101-120000 --for comfyui
    Example: digen export runs/shapes-20260101-120000 --for hub --out my-adapter
    Example: digen export runs/NAME --for hub --push my-name/my-adapter

    It is the average of the last version that is whole, with its strength. What diffusers loads is
    in RUN/lora when a run has ended.

    Args:
        run: Folder of the run.
        target: comfyui or kohya: one safetensors file with the names that the program's own model
            has, of two experts one each. hub: adapter, model card and pictures.
        out: Folder to write to; it must not hold anything yet. Default: RUN/comfyui, RUN/kohya or
            RUN/hub.
        push: With --for hub: repository to push the folder to, ORG/NAME; a new one is private. The
            token is that of 'hf auth login', or HF_TOKEN.
    """
    folder = _folder(run, target, out)
    if push is not None:
        _check_push(push, target)

    from digen_core.checkpoints.adapter import files_of, read_adapter

    adapter = read_adapter(run, _warn)
    file = "" if target == HUB else f"{run.resolve().name}.safetensors"
    _write(run, target, adapter, folder, file)
    files = [folder] if target == HUB else sorted(files_of(adapter, folder / file).values())
    what = "holds" if len(files) == 1 else "hold"
    version = adapter.manifest.version
    _say(f"{' and '.join(map(str, files))} {what} the adapter of version {version}")
    if push is not None:
        from deployments.hub.push import push_folder

        _say(f"pushed to {push_folder(folder, push)}")
    return 0


def _write(run: Path, target: Target, adapter: "Adapter", folder: Path, file: str) -> None:
    """Write what is asked for, whole or not at all.

    Raises:
        UserError: the disk takes no more, or something of the run cannot be read.
    """
    from digen_core.checkpoints.adapter import save_for
    from digen_core.transport.files import new_folder

    with new_folder(folder) as unfinished:
        if target == HUB:
            from deployments.hub.card import write_hub_folder

            write_hub_folder(run, adapter, unfinished)
        else:
            save_for(target, adapter, unfinished / file)


def _folder(run: Path, target: str, out: Path | None) -> Path:
    """Return the folder to write to, which is free and can be written to.

    Raises:
        UserError: the run is none, or the folder is not.
    """
    from deployments.commands.models import require_free
    from digen_core.config.load import require_run
    from digen_core.transport.files import inside

    require_run(run)
    folder = inside(run, target) if out is None else out
    require_free(folder)
    return folder


def _check_push(repo: str, target: str) -> None:
    """Check that something may be pushed, and that somebody is logged in.

    Raises:
        UserError: it may not, or nobody is.
    """
    from digen_core.preflight.hub import is_hub_id

    if target != HUB:
        raise UserError(f"--push pushes what --for hub writes, not --for {target}")
    if not is_hub_id(repo):
        raise UserError(f"--push is {repo!r}; give a repository on the hub as ORG/NAME")

    from deployments.hub.push import require_token

    require_token()


def _say(text: str) -> None:
    sys.stdout.write(printable(redacted(text)) + "\n")


def _warn(text: str) -> None:
    sys.stderr.write(f"digen: warning: {printable(redacted(text))}; the one before is exported\n")
