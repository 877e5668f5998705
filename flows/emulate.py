"""Run a scenario through the conductor, Prefect and Dask, on devices that only wait."""

from pathlib import Path
from typing import Literal

from prefect import flow

from digen_core.algorithms.flow_grpo import FlowGrpo
from digen_core.config.prompts import PromptsConfig
from digen_core.config.rollout import RolloutConfig
from digen_core.config.schedule import ClusterConfig, ScheduleConfig, TrackingConfig
from digen_core.config.train import TrainConfig
from digen_core.errors import UserError
from digen_core.planning.search import Choice
from digen_core.sim.emulated_config import EmulatedConfig
from digen_core.sim.scenario import Scenario
from flows.launch import new_run_dir, run_on
from flows.prepare import prepare
from flows.runtime.subflows import on_cluster
from tasks.body import ONCE
from tasks.cluster.calls import on_worker
from tasks.cluster.emulated import REWARD_SERVERS, emulated_cluster
from tasks.cluster.presence import addresses_of
from tasks.emulated.work import know_costs
from tasks.runner.task_runner import shared_client
from tasks.tracking.untracked import Untracked
from tasks.workers import EmulatedWorkers


@flow(**ONCE, name="emulate", flow_run_name="{config.name}")
def emulate(config: EmulatedConfig, tracked: bool = True) -> None:
    """Run all iterations; observers hear of them, and MLflow and Prefect's pages if ``tracked``."""
    devices = list(config.devices.values())
    with (
        emulated_cluster(devices, config.scenario.hosts) as address,
        shared_client(address) as client,
    ):
        run_dir = new_run_dir(config)
        addresses = addresses_of(client, [REWARD_SERVERS, *config.devices])
        sites = {addresses[name]: device.site for name, device in config.devices.items()}
        for worker in addresses.values():
            on_worker(client, worker, know_costs, run_dir.name, config, sites, run_dir)
        opened = run_on(
            client,
            address,
            devices,
            config,
            run_dir,
            run_dir.name,
            EmulatedWorkers(config),
            tracker=None if tracked else Untracked(),
            pages=tracked,
        )
        with (
            opened as run,
            on_cluster(run, prepare) as conductor,
        ):
            for index in range(config.num_iterations):
                conductor.complete(index, last=config.num_iterations - 1)


def emulated_config(
    scenario: Scenario,
    choice: Choice,
    folder: Path,
    *,
    num_iterations: int,
    steps_per_task: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> EmulatedConfig:
    """Return the config of a run that is scheduled as one choice says.

    Args:
        scenario: with times of wall clock.
        choice: layout and quantities.
        folder: for the run and the prompts that it reads.
        num_iterations: of the run.
        steps_per_task: denoising steps in one task.
        seed: of the jitter.

    Raises:
        UserError: the scenario asks for what a run cannot do.
    """
    if scenario.trained_per_group < scenario.group_size:
        raise UserError(
            f"trained_per_group is {scenario.trained_per_group} of group_size "
            f"{scenario.group_size}; emulated runs train all samples of a group, so make them equal"
        )
    prompts, num_prompts = folder / "prompts.txt", num_iterations * scenario.prompts
    prompts.write_text("\n".join(f"prompt {number}" for number in range(num_prompts)))
    num_rollout = choice.num_rollout or scenario.devices - 1
    try:
        return EmulatedConfig(
            name=f"emulated-{choice.layout}",
            seed=seed,
            num_iterations=num_iterations,
            scenario=scenario,
            num_rollout=choice.num_rollout,
            prompts=PromptsConfig(train=str(prompts), evaluation=str(prompts)),
            rollout=RolloutConfig(
                prompts_per_iteration=scenario.prompts,
                group_size=scenario.group_size,
                num_steps=scenario.steps,
                fragment_size=scenario.fragment_size,
                batch_size=max(scenario.batch_size, scenario.fragment_size),
                steps_per_task=steps_per_task,
            ),
            algorithm=FlowGrpo(trained_fraction=scenario.trained_fraction),
            train=TrainConfig(
                pack_size=scenario.pack_size,
                updates_per_iteration=scenario.updates,
                epochs=scenario.epochs,
                dealt_by=scenario.dealt_by,
            ),
            cluster=ClusterConfig(
                rollout_workers=num_rollout, trainer_workers=scenario.devices - num_rollout
            ),
            schedule=ScheduleConfig(
                layout=choice.layout,
                max_stale_share=choice.stale_share,
                max_staleness=choice.max_staleness,
                helpers=choice.helpers,
                assistants=choice.assistants,
            ),
            tracking=TrackingConfig(runs_dir=str(folder)),
        )
    except ValueError as error:
        raise UserError(f"the scenario cannot be run: {error}") from error
