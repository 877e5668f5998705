"""Commands that make models."""

import sys
from pathlib import Path
from shlex import quote
from typing import Any

from digen_core.config.families import FAMILIES, VIDEO_FAMILIES, FamilyName
from digen_core.config.model import TinySize
from digen_core.errors import UserError
from digen_core.preflight.network import check_writable
from digen_core.transport.files import new_folder


def shapes(*, out: Path = Path("runs/models/shapes"), seed: int = 0, threads: int = 2) -> int:
    """Train the tiny FLUX of the world "shapes": about 5 to 10 minutes on two CPU cores.

    Example: digen pretrain shapes --out runs/models/mine --seed 1

    Args:
        out: Folder to save the model to; it must not hold anything yet.
        seed: Same seed, same weights on the same machine.
        threads: CPU threads.
    """
    _check_pretraining(out, seed, threads)

    from deployments.views.pretraining import pretrain_images

    pretrain_images(out, seed=seed, threads=threads)
    return 0


def shapes_edit(
    *, out: Path = Path("runs/models/shapes_edit"), seed: int = 0, threads: int = 2
) -> int:
    """Train the tiny FLUX.1 Kontext of the world "shapes": about a minute on two CPU cores.

    Example: digen pretrain shapes-edit --out runs/models/mine --seed 1

    Args:
        out: Folder to save the model to; it must not hold anything yet.
        seed: Same seed, same weights on the same machine.
        threads: CPU threads.
    """
    _check_pretraining(out, seed, threads)

    from deployments.views.pretraining import pretrain_editor

    pretrain_editor(out, seed=seed, threads=threads)
    return 0


def _check_pretraining(out: Path, seed: int, threads: int) -> None:
    require_free(out)
    if threads < 1:
        raise UserError(f"--threads is {threads}; use 1 or more")
    _check_seed(seed)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed is {seed}; use 0 <= seed < 2^63")


def make_tiny(
    family: FamilyName, folder: Path, /, *, kind: str = "", size: TinySize = "tiny", seed: int = 0
) -> int:
    """Make a tiny pipeline of a model family with random weights, to try digen with; no downloads.

    Example: digen make-tiny wan runs/models/tiny-wan
    Example: digen make-tiny sd3 runs/models/medium-sd3 --size medium

    Args:
        family: Of the model.
        folder: To save it to; it must not hold anything yet.
        kind: Of a family's models: of wan, ti2v is as Wan2.2-TI2V-5B, a14b as
            Wan2.2-T2V-A14B, i2v as Wan2.1-I2V, flf2v as Wan2.1-FLF2V, i2v-a14b as
            Wan2.2-I2V-A14B; of qwen_image, edit as Qwen-Image-Edit, edit-plus as
            Qwen-Image-Edit-2509; of flux, kontext as FLUX.1-Kontext-dev; of hunyuan_video15,
            i2v as its I2V models, i2v-distilled as the one of few steps; of ltx2, 2.3 as
            LTX-2.3, 2.5 as LTX-2.5; default: the plain one.
        size: Of the transformer: tiny, to see that something works; medium, 10 to 50 million
            parameters, to see what it costs.
        seed: Same seed, same weights.
    """
    require_free(folder)
    _check_seed(seed)
    if kind not in ("", *FAMILIES[family].kinds):
        raise UserError(
            f"--kind is {kind}; of {family} use {' or '.join(FAMILIES[family].kinds) or 'none'}"
        )

    from transformers.utils.logging import disable_progress_bar

    from digen_core.models.tiny.pipelines import build_tiny

    disable_progress_bar()
    pipeline = build_tiny(family, kind=kind, size=size, seed=seed)
    with new_folder(folder) as unfinished:
        pipeline.save_pretrained(unfinished)
    sys.stdout.write(
        f"{folder} holds a random {family} pipeline; two iterations with it: "
        f"{_command_with(pipeline, family, folder, kind)}\n"
    )
    return 0


def _command_with(pipeline: Any, family: FamilyName, folder: Path, kind: str) -> str:
    """Return a command that trains a tiny pipeline for two iterations."""
    row, job = FAMILIES[family], "shapes_smoke"
    more = " --model.num-frames 5" if family in VIDEO_FAMILIES else ""
    is_editor = bool(kind) and type(pipeline).__name__ in row.editors
    if is_editor:
        more += " --model.max-sequence-length 64"
    if is_editor and row.told_ends and pipeline.transformer.config[row.told_ends]:
        # the job for edits learns from clean samples, which say nothing of a step
        edits = "digen:prompts/shapes_edit"
        more += (
            f" --prompts.train {edits}_train.jsonl --prompts.evaluation {edits}_evaluation.jsonl "
            "--prompts.image-column image --rewards '{shapes_edit=1.0}' "
            "--model.sigmas '[1.0, 0.9, 0.7, 0.4]'"
        )
    elif is_editor:
        job = "shapes_edit"
        more += """ --num-iterations 2 --train.lora.targets '["to_q", "to_v"]'"""
    return f"digen train {job} --model.family {family} --model.path {quote(str(folder))}{more}"


def convert_hps(checkpoint: Path, folder: Path, /) -> int:
    """Convert HPS v2's published checkpoint, which is open_clip's, for the reward "hps".

    Example: digen convert-hps HPS_v2.1_compressed.pt models/hps

    Args:
        checkpoint: The .pt file. Its weights are read; nothing in it is run.
        folder: To save the model to; it must not hold anything yet.
    """
    require_free(folder)

    from transformers.utils.logging import disable_progress_bar

    from digen_core.rewards.clip.open_clip import convert_checkpoint

    disable_progress_bar()
    model = convert_checkpoint(checkpoint)
    with new_folder(folder) as unfinished:
        model.save_pretrained(unfinished)
    sys.stdout.write(
        f'{folder} holds the CLIP model; the reward "hps" takes it as path, with the processor '
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K\n"
    )
    return 0


def require_free(folder: Path) -> None:
    """Check that a folder is missing or empty, and can be made and written to."""
    if not folder.name:
        raise UserError(f"{folder} is a folder that is there; give the name of one that is made")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; remove it or choose another folder")
    check_writable(f"the folder is {folder}", folder)
