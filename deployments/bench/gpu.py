"""The settings with which a GPU computes fastest: the mission's models at their recipes' sizes.

The kernels of attention are tried first, then compilation with the best of them, CUDA graphs with
the best with and without it, and rollouts in float8 with the best of all: each setting that is
tried takes a model of its own, and to try all of them together would take a card for hours.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, Final, Self, get_args

import torch

from deployments.bench.utilization import CLUSTER_KEYS, Row, Utilization, measure
from deployments.shipped import find_config
from digen_core.config.families import FAMILIES
from digen_core.config.load import load_config
from digen_core.config.model import Attention, ModelConfig
from digen_core.config.rollout import Precision
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.planning.model_settings import settings_folder
from digen_core.trace.peaks import peak_of
from tasks.measure import Work
from tasks.setup import require_rollouts

JOBS: Final[dict[str, tuple[str, Mapping[str, Any]]]] = {
    "FLUX.1 12B, LoRA": ("flow_grpo_flux_fast", {}),
    "FLUX.1 12B, all weights": ("dance_grpo_flux", {}),
    "Qwen-Image 20B, LoRA": ("flow_grpo_qwen_image_fast", {}),
    "Wan2.1 14B, LoRA": (
        "flow_grpo_wan_ocr",
        {
            "model.path": "Wan-AI/Wan2.1-T2V-14B-Diffusers",
            "model.height": 480,
            "model.width": 832,
            "model.num_frames": 81,
            "train.gradient_checkpointing": True,
        },
    ),
    "HunyuanVideo 13B, all weights": ("dance_grpo_hunyuan_video", {}),
}
"""Name -> a shipped recipe, and what is changed: FlowGRPO's Wan is the small one, of 33 frames."""

COMPILED: Final[tuple[Any, ...]] = (True, "max-autotune-no-cudagraphs")
HEADINGS: Final = (
    *("model", "attention", "compile", "rollout", "work", "items", "ms", "TFLOP/s", "of the peak"),
)
_STEP_OF_SIZES: Final = 4  # from one batch size to the next


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to compute a model."""

    attention: Attention
    compile: Any  # as model.compile
    precision: Precision = "model"  # as rollout.precision
    cuda_graphs: bool = False  # as rollout.cuda_graphs

    def __str__(self) -> str:
        graphs = ", CUDA graphs" if self.cuda_graphs else ""
        return f"attention {self.attention}, compile {str(self.compile).lower()}{graphs}"

    def of(self, config: RunConfig) -> RunConfig:
        """Return a config with this setting."""
        changes = {"attention": self.attention, "compile": self.compile}
        model = ModelConfig.model_validate({**config.model.model_dump(), **changes})
        own = {"precision": self.precision, "cuda_graphs": self.cuda_graphs}
        rollout = config.rollout.model_copy(update=own)
        return config.model_copy(update={"model": model, "rollout": rollout})

    @classmethod
    def in_config(cls, config: RunConfig) -> Self:
        """Return the setting that a config has."""
        model, rollout = config.model, config.rollout
        return cls(model.attention, model.compile, rollout.precision, rollout.cuda_graphs)


@dataclass(frozen=True, slots=True)
class Found:
    """What a setting reached."""

    setting: Setting
    rows: list[Row]

    def best(self, work: Work) -> Row:
        """Return the fastest number of items for work, by item."""
        return min(
            (row for row in self.rows if row.work == work), key=lambda row: row.seconds / row.items
        )

    def sample_seconds(self, config: RunConfig) -> float:
        """Return the seconds of a sample's denoising and of the training of its pairs."""
        step, pack = self.best("step"), self.best("pack")
        return (
            config.rollout.num_steps * step.seconds / step.items
            + config.num_trained_steps * pack.seconds / pack.items
        )


def main(
    names: Sequence[str], *, device: str, share: float, rounds: int, minutes: float, peak: float
) -> None:
    """Print a row for all that is measured, as it comes, and the best setting of each model.

    Args:
        names: of jobs, recipes or configs; none: all jobs.
        device: of torch.
        share: of the transformers' blocks that are built, in (0, 1].
        rounds: in which each size is timed once, after one that warms up.
        minutes: after which no further setting is tried; what is left is shared by the models.
        peak: of the device, 10^12 FLOP a second; 0: by its name, if that is known.

    Raises:
        UserError: a config is wrong, its model's settings are not there, or the device failed.
    """
    jobs = {name: config_of(name, device) for name in names or JOBS}
    peak = peak or peak_of_device(torch.device(device))
    end = monotonic() + 60 * minutes
    _say(_line(HEADINGS))
    _say(_line(["---"] * 5 + ["--:"] * 4))
    best = dict[str, Found | None]()
    for place, (name, config) in enumerate(jobs.items()):
        own_end = monotonic() + (end - monotonic()) / (len(jobs) - place)
        measured = partial(try_setting, name, share=share, rounds=rounds, peak=peak, end=own_end)
        try:
            best[name] = search(config, measured)
        except UserError:  # the device failed; what it had reached before stands
            _say_best(best, peak)
            raise
    _say_best(best, peak)


def _say_best(best: Mapping[str, Found | None], peak: float) -> None:
    _say("")
    for name, found in best.items():
        _say(summary(name, found, peak))


def config_of(name: str, device: str) -> RunConfig:
    """Return the config of a job, a recipe or a file.

    Raises:
        UserError: there is none, it is wrong, or its model's settings are not there.
    """
    recipe, changes = JOBS.get(name, (name, {}))
    config = load_config(find_config(recipe), {**changes, "model.device": device})
    settings_folder(config.model.path)
    return config


def peak_of_device(device: torch.device) -> float:
    """Return the peak of a device in bfloat16, 10^12 FLOP a second; 0: not known."""
    if device.type != "cuda":
        return 0.0
    return peak_of(torch.cuda.get_device_name(device))


def search(config: RunConfig, tried: Callable[[RunConfig], Found | None]) -> Found | None:
    """Return the setting of which a sample takes the least time, of those that work.

    Rollouts in float8 are measured with it, and not chosen: their samples are others.

    Args:
        config: of the run.
        tried: measures a config; None: it does not work, or there is no time left.
    """

    def best_of(settings: Iterator[Setting]) -> Found | None:
        found = [one for setting in settings if (one := tried(setting.of(config)))]
        return min(found, key=lambda one: one.sample_seconds(config), default=None)

    kernels = {*FAMILIES[config.model.family].attention} - {"math"}  # a check, never the fastest
    plain = best_of(
        Setting(kernel, compile=False) for kernel in get_args(Attention) if kernel in kernels
    )
    if plain is None:
        return None
    compiled = best_of(Setting(plain.setting.attention, mode) for mode in COMPILED)
    both = [one for one in (plain, compiled) if one is not None]
    graphed = best_of(replace(one.setting, cuda_graphs=True) for one in both)
    every = both if graphed is None else [*both, graphed]
    best = min(every, key=lambda one: one.sample_seconds(config))
    tried(replace(best.setting, precision="float8").of(config))
    return best


def try_setting(
    name: str, config: RunConfig, *, share: float, rounds: int, peak: float, end: float
) -> Found | None:
    """Measure a setting, print its rows, and return them if it works and there is time.

    Args:
        name: of the job.
        config: with the setting.
        share: of the transformer's blocks that are built, in (0, 1].
        rounds: in which each size is timed once, after one that warms up.
        peak: of the device, 10^12 FLOP a second; 0: not known.
        end: when no setting is begun any more, nor a size of one, on the monotonic clock.
    """
    setting = Setting.in_config(config)

    def left_out(why: object) -> None:
        _say(_line([name, *_words(setting), f"left out: {why}", "", "", "", ""]))

    if monotonic() > end:
        left_out("no time is left")
        return None
    try:
        require_rollouts(config)
        measured = measure(config, works_of(config), share, rounds, end)
    except (UserError, RuntimeError, NotImplementedError) as error:  # no such kernel here
        left_out(str(error).partition("\n")[0])
        return None
    finally:
        _let_go()
    for row in measured.rows:
        _say(_line([name, *_words(setting), *_cells(row, peak)]))
    for work, items in measured.left_out:
        left_out(f"{work} of {items} does not fit into memory")
    for work, items in measured.not_begun:
        left_out(f"no time is left for a {work} of {items}")
    return Found(setting, measured.rows) if _has_both(measured) else None


def works_of(config: RunConfig) -> list[tuple[Work, int]]:
    """Return steps and packs of 1, 4, 16, ... items up to the config's, and those."""
    largest: dict[Work, int] = {"step": config.batch_size, "pack": config.train.pack_size}
    return [(work, size) for work, most in largest.items() for size in sizes_up_to(most)]


def sizes_up_to(most: int) -> list[int]:
    """Return 1, 4, 16, ... below a number, and the number."""
    sizes, size = [], 1
    while size < most:
        sizes.append(size)
        size *= _STEP_OF_SIZES
    return [*sizes, most]


def _has_both(measured: Utilization) -> bool:
    return {row.work for row in measured.rows} == {"step", "pack"}


def _let_go() -> None:
    """Give a model's memory back, and what was compiled for it.

    Raises:
        UserError: the device failed, and computes nothing more in this process.
    """
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.empty_cache()
        except torch.AcceleratorError as error:
            raise UserError(
                f"the GPU failed in the setting above: {str(error).partition(chr(10))[0]}; "
                "give the models that are left as NAMES"
            ) from error


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # what was measured stands, whatever ends this


def _words(setting: Setting) -> list[str]:
    rollout = f"{setting.precision}, graphs" if setting.cuda_graphs else setting.precision
    return [setting.attention, str(setting.compile).lower(), rollout]


def _cells(row: Row, peak: float) -> list[str]:
    share = f"{row.tflops / peak:.1%}" if peak else "-"
    return [row.work, str(row.items), f"{1e3 * row.seconds:.1f}", f"{row.tflops:.3g}", share]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def summary(name: str, found: Found | None, peak: float) -> str:
    """Return a sentence on the best setting, with what a cluster file says of it."""
    if found is None:
        return f"{name}: nothing that works was found"
    works: tuple[Work, ...] = ("step", "pack")
    rows = [found.best(work) for work in works]
    sizes = ", ".join(f"{row.work} of {row.items}: {row.tflops:.3g} TFLOP/s" for row in rows)
    keys = [f"{CLUSTER_KEYS[row.work]} = {row.tflops / peak:.3g}" for row in rows if peak]
    return "; ".join([f"{name}: {found.setting}", sizes, *keys])
