"""A folder for the Hugging Face hub: the adapter, a model card, and what the run has to show."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from huggingface_hub import ModelCard, ModelCardData

from deployments.views.report_rewards import evaluation_table, reward_curves
from deployments.views.summary import LEGEND
from digen_core.checkpoints.adapter import Adapter
from digen_core.checkpoints.export import save_kept_adapter
from digen_core.checkpoints.retention import evaluations_of
from digen_core.config.families import FAMILIES, VIDEO_FAMILIES
from digen_core.config.run import RunConfig
from digen_core.inputs.text import number_of
from digen_core.models.expert_names import PARTS, split
from digen_core.preflight.hub import is_hub_id
from digen_core.records import FIRST, LAST
from digen_core.trace.charts import draw_curves
from digen_core.trace.page import Table, png_of
from digen_core.transport.files import inside
from tasks.views.markdown import cell, code, escaped

CARD: Final = "README.md"
GRIDS: Final = (FIRST, LAST)
HELD_OUT: Final = f"Held-out prompts, mean over the samples. {LEGEND}."
LICENCE: Final = (
    "*To be filled in by whoever publishes this: the licences of the base model, of the reward "
    "models and of the prompts bear on it. The key is `license` at the top of this file.*"
)


def write_hub_folder(run_dir: Path, adapter: Adapter, folder: Path) -> None:
    """Write adapter, card and pictures of a run into a folder that is there.

    What was judged later, a version whose checkpoint is not kept or is damaged, is left out.

    Raises:
        UserError: samples of the run cannot be read.
    """
    found = evaluations_of(run_dir)
    later = {tag for tag, own in found.items() if own.version > adapter.manifest.version}
    evaluations = evaluation_table({tag: found[tag] for tag in found.keys() - later})
    curves, errors = reward_curves(run_dir)
    save_kept_adapter(adapter, folder)
    pictures = []
    if curves:
        (folder / "rewards.png").write_bytes(png_of(draw_curves(curves, errors)))
        pictures.append("rewards")
    for name in GRIDS:
        grid = inside(run_dir, f"grids/{name}.png")
        if grid.is_file() and name not in later:
            shutil.copyfile(grid, folder / f"{name}.png")
            pictures.append(name)
    text = _text(run_dir.resolve().name, adapter, evaluations, pictures)
    card = ModelCard(f"---\n{_data(adapter.manifest.config).to_yaml()}\n---\n\n{text}")
    (folder / CARD).write_text(str(card), encoding="utf-8")


def base_model(config: RunConfig) -> str | None:
    """Return the hub id of the model that a run began with; None: it is a folder of somebody's."""
    path = config.model.path
    return path if is_hub_id(path) and not Path(config.model.source).exists() else None


def _data(config: RunConfig) -> ModelCardData:
    """Return what the hub sorts models by."""
    base = base_model(config)
    relation: dict[str, Any] = {} if base is None else {"base_model_relation": "adapter"}
    return ModelCardData(
        base_model=base,
        library_name="diffusers",
        pipeline_tag=f"{'image' if config.model.source_image else 'text'}-to-"
        f"{'video' if _makes_videos(config) else 'image'}",
        tags=["diffusers", "lora", "reinforcement-learning", "digen", config.algorithm.type],
        **relation,
    )


def _makes_videos(config: RunConfig) -> bool:
    return config.model.family in VIDEO_FAMILIES


def _text(name: str, adapter: Adapter, evaluations: Table | None, pictures: Sequence[str]) -> str:
    config = adapter.manifest.config
    base = base_model(config)
    model = code(base) if base else f"a {code(config.model.family)} model of the maker's own"
    count = number_of(adapter.manifest.num_iterations, "iteration")
    lines = [
        f"# {escaped(name)}",
        "",
        f"A LoRA adapter of {model}, trained by reinforcement learning with digen: "
        f"{code(config.algorithm.type)}, {count}, version "
        f"{adapter.manifest.version} of the policy.",
        *_section("Use", _use(config, adapter)),
        *_section("Training", _rows(("setting", "value"), _settings(config))),
    ]
    if evaluations is not None:
        lines += _section(
            "Evaluation", [HELD_OUT, "", *_rows(evaluations.columns, evaluations.rows)]
        )
    if "rewards" in pictures:
        lines += _section("Rewards", ["![rewards of training](rewards.png)"])
    grids = [f"![samples {grid} training]({grid}.png)" for grid in GRIDS if grid in pictures]
    if grids:
        lines += _section("Samples", grids)
    return "\n".join([*lines, *_section("Licence", [LICENCE]), ""])


def _section(heading: str, lines: Iterable[str]) -> list[str]:
    return ["", f"## {heading}", "", *lines]


def _use(config: RunConfig, adapter: Adapter) -> list[str]:
    base, family = base_model(config), FAMILIES[config.model.family]
    source = [repr(base or "the base model's folder")]
    if base is not None and config.model.revision is not None:
        source.append(f"revision={config.model.revision!r}")
    pipeline = family.named_for(source_image=config.model.source_image) or "DiffusionPipeline"
    calls = {
        PARTS["high"]: "",
        PARTS["low"]: ', weight_name="transformer_2.safetensors", load_into_transformer_2=True',
    }
    loads = "load_lora_weights"
    if not family.loads_lora:
        loads = "transformer.load_lora_adapter"
        calls[PARTS["high"]] = ', weight_name="pytorch_lora_weights.safetensors"'
    return [
        "```python",
        f"from diffusers import {pipeline}",
        "",
        f"pipeline = {pipeline}.from_pretrained({', '.join(source)})",
        *(
            f'pipeline.{loads}("this folder, or its name on the hub"{calls[part]})'
            for part in split(adapter.layers)
        ),
        "```",
    ]


def _settings(config: RunConfig) -> list[tuple[str, str]]:
    lora, model = config.train.lora, config.model
    assert lora is not None
    size = f"{model.height} x {model.width}" + (f" x {model.num_frames}" * _makes_videos(config))
    return [
        ("algorithm", config.algorithm.type),
        ("rewards", ", ".join(config.rewards)),
        ("rank, alpha", f"{lora.rank}, {lora.alpha:g}"),
        ("layers", ", ".join(lora.targets)),
        ("size", size),
        ("trained on top of", ", ".join(model.adapters) or "the base model"),
    ]


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as Markdown."""
    texts = [[cell(text) if text else "" for text in row] for row in rows]
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *texts)]
