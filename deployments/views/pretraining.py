"""Pretraining with a progress bar, for the command line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deployments.views.terminal import terminal
from digen_core.models.tiny.pretrain import OnProgress, PretrainConfig, pretrain_shapes
from digen_core.models.tiny.pretrain_edits import EDITS, pretrain_edits


def pretrain_images(out: Path, *, seed: int, threads: int) -> None:
    """Train the base model of the world ``shapes`` and save it to ``out``."""
    lengths = PretrainConfig()
    with _progress({"vae": lengths.vae_steps, "flow": lengths.flow_steps}) as on_progress:
        pretrain_shapes(
            out, seed=seed, config=lengths, num_threads=threads, on_progress=on_progress
        )
    _say_how(out, "shapes")


def pretrain_editor(out: Path, *, seed: int, threads: int) -> None:
    """Train the base model that edits images of that world and save it to ``out``."""
    with _progress({"flow": EDITS.flow_steps}) as on_progress:
        pretrain_edits(out, seed=seed, num_threads=threads, on_progress=on_progress)
    _say_how(out, "shapes_edit")


@contextmanager
def _progress(totals: Mapping[str, int]) -> Iterator[OnProgress]:
    """Show a bar for each phase, of so many steps, while the body runs."""
    columns = (
        TextColumn("{task.description:<5}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bars = {
            phase: progress.add_task(phase, total=total, loss="-", start=False)
            for phase, total in totals.items()
        }

        def on_progress(phase: str, step: int, loss: float) -> None:
            if not progress.tasks[bars[phase]].started:
                progress.start_task(bars[phase])
            progress.update(bars[phase], completed=step, loss=f"{loss:.4f}")

        yield on_progress


def _say_how(out: Path, config: str) -> None:
    console = terminal()
    console.print(f"saved to {out}; train it with", markup=False)
    console.print(f"digen train {quote(str(config))} --model.path {quote(str(out))}", markup=False)
