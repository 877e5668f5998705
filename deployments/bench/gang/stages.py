"""Stages over a slow link: what steps and packs take, with streams as they are and coded.

The stages are worker processes of this machine, one gang, whose links are emulated: what one sends
another is held back for as long as a link of so many bits per second and such a latency would take
it. Blocks compute what they compute, and codecs code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import median
from typing import Any, Final

import torch
from distributed import Client
from rich.console import Console

from deployments.bench.gang.slow_stage import SlowStage
from deployments.views.size import reading_settings
from deployments.views.terminal import borderless, terminal
from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.control.costs import Link
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.gang.degrees import check_stages
from digen_core.gang.members import Gang
from digen_core.gang.runs import runs_of
from digen_core.models.image_size import read_settings
from digen_core.models.loading import load_trainable
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import TRAINER_PARTS, Condition
from digen_core.planning.model_settings import settings_folder
from tasks.cluster.cluster import run_cluster
from tasks.cluster.presence import ROLES, present_workers
from tasks.gang.forming import form_gang
from tasks.gang.together import together
from tasks.measure import compared_pack, work_seconds

CODECS: Final[Mapping[str, Mapping[str, str]]] = {
    "none": {"forward": "none", "backward": "none"},
    "bf16": {"forward": "bf16", "backward": "bf16"},
    "int8": {"forward": "int8", "backward": "int8"},
    "int8/int4": {"forward": "int8", "backward": "int4"},
    "int4": {"forward": "int4", "backward": "int4"},
    "int8/topk": {"forward": "int8", "backward": "topk"},
}
"""What is compared, by name: codecs of streams, and of their gradients."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a codec makes of steps and packs; seconds are medians."""

    codecs: str
    step: float
    pack: float
    step_bytes: int  # that all stages send
    pack_bytes: int
    cosine: float  # of the gradient to the one without codecs


def link_of(gbit_per_second: float, latency: float) -> Link:
    """Return the link between two stages."""
    return Link(
        between=("stage", "next"), bytes_per_second=gbit_per_second * 1e9 / 8, latency=latency
    )


def bench_stages(
    config: RunConfig, link: Link, codecs: Sequence[str], *, samples: int, rounds: int
) -> list[Measured]:
    """Measure one codec after the other, each with the model loaded anew.

    Args:
        config: of the model; with two stages, if it has one.
        link: between each two stages.
        codecs: names of what is compared.
        samples: of a step, and pairs of a pack.
        rounds: in which each is timed.

    Raises:
        UserError: the model cannot be cut into such stages, or would compute on GPUs.
    """
    if torch.cuda.is_available():  # what is sent would be held back before it is computed
        raise UserError(
            "digen bench stages emulates links between processes on CPU cores, but here is a GPU; "
            "hide it: CUDA_VISIBLE_DEVICES= digen bench stages ..."
        )
    config = _in_stages(config)
    size = config.parallel.stages
    devices = [Device("gang", frozenset(ROLES), size=size)]
    with run_cluster(ClusterConfig(tls=False), devices) as address, Client(address) as client:
        leader = next(w for w in present_workers(client).values() if w.name == "gang")
        form_gang(client, leader.address, list(leader.followers.values()))
        return [
            client.submit(
                _measure,
                _coded(config, name),
                name,
                link,
                samples,
                rounds,
                workers=[leader.address],
                pure=False,
            ).result()
            for name in codecs
        ]


def _in_stages(config: RunConfig) -> RunConfig:
    """Return a config that says how many stages there are, and where each begins."""
    config = _dealt(config, stages=max(2, config.parallel.stages))
    with reading_settings(config):
        transformer = read_settings(settings_folder(config.model.path))[1]
        check_stages(config, transformer=transformer)
        blocks = FAMILIES[config.model.family].num_blocks(transformer)
    parallel = config.parallel
    runs = runs_of([1] * blocks, parallel.stages, parallel.stage_blocks)
    return _dealt(config, stage_blocks=tuple(map(len, runs)))


def _dealt(config: RunConfig, **changes: Any) -> RunConfig:
    return config.model_copy(update={"parallel": config.parallel.model_copy(update=changes)})


def _coded(config: RunConfig, name: str) -> RunConfig:
    """Return a config whose stages have codecs between them."""
    ends = list(accumulate(config.parallel.stage_blocks))[:-1]
    cuts = [{"block": end, **CODECS[name]} for end in ends]
    return RunConfig.model_validate(
        {**config.model_dump(), "model": {**config.model.model_dump(), "cuts": cuts}}
    )


@together
def _measure(config: RunConfig, name: str, link: Link, samples: int, rounds: int) -> Measured:
    """Time steps and packs, on all members."""
    gang = Gang.of(config.parallel)
    policy = load_trainable(config, TRAINER_PARTS, gang)
    assert isinstance(policy, PipelinePolicy)
    stage = policy.stage = policy.make_stage(partial(SlowStage, link=link))
    condition = _noise(policy)

    def seconds_and_bytes(kind: Any) -> tuple[float, int]:
        before = stage.num_bytes
        found = work_seconds(policy, config, condition, [(kind, samples)], rounds, gang)
        sent = sum(gang.everyone(stage.num_bytes - before))
        return median(found[kind, samples]), sent // (rounds + 1)

    step, step_bytes = seconds_and_bytes("step")
    pack, pack_bytes = seconds_and_bytes("pack")
    own = compared_pack(policy, config, condition, samples, gang)
    cosine = sum(gang.everyone(own), type(own)()).cosine
    return Measured(name, step, pack, step_bytes, pack_bytes, cosine or 0.0)


def _noise(policy: PipelinePolicy) -> Condition:
    """Return the condition of a prompt that nobody wrote, the same on all members."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.ones_like(value)
        if name.endswith("mask")
        else torch.randn(value.shape, generator=generator).to(value)
        for name, value in policy.blank_condition(1).items()
    }


def print_bench(
    found: Sequence[Measured], link: Link, samples: int, console: Console | None = None
) -> None:
    """Print a row for each codec."""
    title = (
        f"{samples} samples through stages, {8e-6 * link.bytes_per_second:g} Mb/s and "
        f"{1e3 * link.latency:g} ms between them"
    )
    table = borderless(title)
    for heading in ("codecs", "MB a step", "s", "x", "MB a pack", "s", "x", "cosine"):
        table.add_column(heading, justify="left" if heading == "codecs" else "right")
    first = found[0]
    for own in found:
        table.add_row(
            own.codecs,
            f"{own.step_bytes / 1e6:.3f}",
            f"{own.step:.3f}",
            f"{first.step / own.step:.2f}",
            f"{own.pack_bytes / 1e6:.3f}",
            f"{own.pack:.3f}",
            f"{first.pack / own.pack:.2f}",
            f"{own.cosine:.4f}",
        )
    console = console or terminal()
    console.print(table)
    console.print(f"MB: what all stages send; x: times as fast as {first.codecs}")
