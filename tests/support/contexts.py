"""Contexts of runs, built by hand: no cluster, no servers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from digen_core.checkpoints.manifest import Lineage
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.runtime.context import RunContext
from flows.runtime.fleet.fleet import Fleet
from tasks.tracking.untracked import Untracked
from tasks.workers import RealWorkers

SPLIT = (
    Device("rollout-0", frozenset({"rollout"})),
    Device("trainer-0", frozenset({"trainer"})),
)


def run_context(
    run_dir: Path, config: RunConfig | None = None, devices: Sequence[Device] = SPLIT
) -> RunContext:
    """Return the context of a run that talks to nobody: it has no Dask client."""
    nobody: Any = None
    return RunContext(
        run_id="run",
        config=config or RunConfig(),
        run_dir=run_dir,
        prompts=[],
        evaluation_prompts=[],
        address="",
        client=nobody,
        fleet=Fleet(list(devices), {device.name: "" for device in devices}),
        workers=RealWorkers(config or RunConfig()),
        tracker=Untracked(),
        lineage=Lineage(
            run_id="run",
            mlflow_run_id="",
            flow_run_ids=(),
            prompts_hash="",
            evaluation_prompts_hash="",
        ),
    )
