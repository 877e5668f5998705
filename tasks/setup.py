"""Set-up tasks: load the model on a worker, and measure a denoising step there."""

from pathlib import Path
from time import time

import torch
from prefect import task

from digen_core.checks import explain_load_error
from digen_core.config import ConfigError, RunConfig
from digen_core.models.policy import Policy
from digen_core.training.optimizer import TrainState
from digen_core.transport.arrays import content_hash
from digen_core.transport.weights import read_weights
from tasks import receipts
from tasks.engine import build_engine, working


@task(name="load model", task_run_name="{label}")
def load_model(run_id: str, label: str, config: RunConfig, device: str, roles: list[str]) -> None:
    """Load the parts of the model that the worker needs for its roles."""
    started = time()
    try:
        engine = build_engine(run_id, config, device, frozenset(roles))
    except OSError as error:  # its causes, which explain it, are lost on the way to the flow
        raise ConfigError(explain_load_error(config, error)) from error
    step_seconds = 0.0
    if "rollout" in roles:
        step_seconds = _measure_step(engine.policy, config)
    receipts.attach(
        {"device": device, "started": started, "ended": time(), "step_seconds": step_seconds}
    )


@task(name="warm up", task_run_name="{label}")
def warm_up(run_id: str, label: str) -> None:
    """Do nothing: the first task of a flow run makes its context on the worker, in 0.1 s."""


@task(name="restore version", task_run_name="{label}")
def restore_state(run_id: str, label: str, weights_dir: Path) -> TrainState:
    """Read the last version that a run kept, for evaluation: without the optimizer's moments."""
    with working(run_id):
        version, weights, ema = read_weights(weights_dir)
    receipts.attach({"version": version})
    return TrainState(version, weights, content_hash(weights), {}, {}, ema)


@torch.no_grad()
def _measure_step(policy: Policy, config: RunConfig) -> float:
    """Return the seconds of one velocity of a fragment, the second time it is computed."""
    size = config.rollout.fragment_size
    condition = {
        name: value.expand(size, *value.shape[1:])
        for name, value in policy.encode(["warm-up"]).items()
    }
    x = torch.zeros(size, *policy.latent_shape, device=policy.device, dtype=policy.latent_dtype)
    sigma = torch.full((size,), 0.5, device=policy.device)
    seconds = 0.0
    for _ in range(2):
        started = time()
        float(policy.velocity(x, sigma, condition).sum())  # waits for an asynchronous device
        seconds = time() - started
    return seconds
