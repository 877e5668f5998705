"""Pretraining with a progress bar, for the command line."""

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deployments.views.terminal import terminal
from digen_core.models.tiny.pretrain import PretrainConfig, pretrain_shapes


def pretrain(out: Path, *, seed: int, threads: int) -> None:
    """Train the base model of the world ``shapes`` and save it to ``out``."""
    lengths = PretrainConfig()
    totals = {"vae": lengths.vae_steps, "flow": lengths.flow_steps}
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

        pretrain_shapes(
            out, seed=seed, config=lengths, num_threads=threads, on_progress=on_progress
        )
    console = terminal()
    console.print(f"saved to {out}; train it with", markup=False)
    console.print(f"digen train shapes --model.path {out}", markup=False)
