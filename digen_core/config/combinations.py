"""Combinations of a config's tables that cannot work: refused with what clashes and a way out.

Every check raises ValueError. Importing this module must not import torch.
"""

from collections.abc import Collection, Mapping
from typing import Final

from digen_core.algorithms.base import Algorithm
from digen_core.config.model import ModelConfig
from digen_core.config.parallel import ParallelConfig
from digen_core.config.prompts import PromptsConfig
from digen_core.config.rewards import RewardConfig, relative
from digen_core.config.rollout import RolloutConfig, check_shared_noise, check_solver
from digen_core.config.schedule import ClusterConfig, ScheduleConfig, TrackingConfig
from digen_core.config.train import TrainConfig
from digen_core.inputs.text import number_of

WITH_BARRIER: Final = ("colocated", "colocated-strong", "disaggregated")
"""Layouts that train when all rewards of the iteration are there."""

COLOCATED: Final = ("colocated", "colocated-strong")
"""Layouts whose workers all generate and train."""

ALONE: Final = (*COLOCATED, "tcss", "elastic")
"""Layouts in which one worker alone can do both."""

MAX_STEPS_PER_ITERATION: Final = 2**24
"""Denoising steps of an iteration, of all samples: hundreds of times those of the recipes."""


def check_source_image(prompts: PromptsConfig, model: ModelConfig) -> None:
    """Refuse source images that the model is not shown, and a model that waits for some."""
    column = prompts.image_column
    if (column is not None) != model.source_image:
        raise ValueError(
            f"model.source_image is {str(model.source_image).lower()}, but "
            f"prompts.image_column {'names no column' if column is None else f'is {column!r}'}"
            "; set both, or neither."
        )


def check_work(rollout: RolloutConfig) -> None:
    """Refuse iterations that are too large."""
    steps = rollout.prompts_per_iteration * rollout.group_size * rollout.num_steps
    more = ""
    if screening := rollout.screening:
        num_steps = screening.num_steps or rollout.num_steps
        steps += rollout.prompts_per_iteration * screening.candidates * num_steps
        of_each = f"{number_of(num_steps, 'step')} of each"
        more = f", and screening.candidates ({screening.candidates}) x {of_each},"
    if steps > MAX_STEPS_PER_ITERATION:
        raise ValueError(
            f"rollout.prompts_per_iteration ({rollout.prompts_per_iteration}) x "
            f"group_size ({rollout.group_size}) x num_steps ({rollout.num_steps}){more} is "
            f"{steps} denoising steps an iteration; use at most {MAX_STEPS_PER_ITERATION}: "
            "all of them are planned and held in memory."
        )


def check_batch(rollout: RolloutConfig, prompts: PromptsConfig, fragment_size: int) -> None:
    """Refuse batches that hold no whole fragment, or of samples that nobody denoises."""
    size = rollout.batch_size
    if size is None:
        return
    if prompts.sample_columns:
        raise ValueError(
            f"rollout.batch_size is {size}, of samples denoised together, but prompts."
            "sample_columns names samples that are not denoised; leave one of them out."
        )
    if size < fragment_size:
        raise ValueError(
            f"rollout.batch_size is {size}, fewer samples than a fragment has ({fragment_size}); "
            "use more, or a smaller rollout.fragment_size."
        )


def check_steps(algorithm: Algorithm, rollout: RolloutConfig, num_steps: int) -> None:
    """Refuse trajectories of so many steps of which an algorithm cannot train what it is to."""
    algorithm.check_steps(num_steps)
    if rollout.transition == "cps" and algorithm.end_of_noise(num_steps) == num_steps:
        raise ValueError(
            f"the last cps step ({num_steps}) is noiseless and has no log-prob to train; use "
            f"algorithm.trained_fraction 0.99, or a window with high <= {num_steps - 1}."
        )


def check_named_levels(model: ModelConfig, rollout: RolloutConfig, evaluation_steps: int) -> None:
    """Refuse other numbers of steps than a model's noise levels are named for."""
    count = len(model.sigmas)
    steps = {"rollout.num_steps": rollout.num_steps, "evaluation.num_steps": evaluation_steps}
    if rollout.screening is not None and rollout.screening.num_steps is not None:
        steps["rollout.screening.num_steps"] = rollout.screening.num_steps
    for name, number in steps.items():
        if count and number != count:
            raise ValueError(
                f"{name} is {number}, but model.sigmas names the noise levels of "
                f"{number_of(count, 'step')}; use {count}, or leave model.sigmas out."
            )


def check_own_steps(prompts: PromptsConfig, algorithm: Algorithm, model: ModelConfig) -> None:
    """Refuse what has to know how many steps there are where groups have their own."""
    fewer = {
        f"prompts.steps_column is {prompts.steps_column!r}": prompts.steps_column,
        "algorithm.tail_fraction is below 1": algorithm.shortens,
    }
    for what in (name for name, is_there in fewer.items() if is_there and model.sigmas):
        raise ValueError(
            f"{what}, but model.sigmas names the noise levels of all steps; use one of them."
        )
    if prompts.steps_column and algorithm.shortens:
        raise ValueError(
            f"prompts.steps_column is {prompts.steps_column!r}, but algorithm.tail_fraction takes "
            "fewer steps than rollout.num_steps by itself; use one of them."
        )
    if prompts.steps_column and algorithm.reward_kl and algorithm.needs_all_rewards:
        factor, _ = algorithm.reward_kl
        raise ValueError(
            f"prompts.steps_column is {prompts.steps_column!r}, but algorithm.kl_reward ({factor}) "
            f"with advantage_scale {algorithm.advantage_scale!r} compares each step of all groups; "
            "use advantage_scale 'group' or 'none', or algorithm.kl_coefficient."
        )


def check_profiles(tracking: TrackingConfig, num_iterations: int) -> None:
    """Refuse profiles of iterations that the run does not have."""
    late = [number for number in tracking.profile_iterations if number > num_iterations]
    if late:
        raise ValueError(
            f"tracking.profile_iterations names {', '.join(map(str, late))}, but the run ends "
            f"after iteration {num_iterations} (num_iterations); name earlier ones."
        )


def check_updates(train: TrainConfig, units: int) -> None:
    """Refuse samples that cannot be dealt in equal shares.

    Args:
        train: the updates of an iteration.
        units: groups, or trained samples, that each epoch deals to them.
    """
    if train.updates_per_iteration == 1:
        return
    in_epoch = train.updates_per_iteration // train.epochs
    if units % in_epoch:
        raise ValueError(
            f"train.updates_per_iteration is {train.updates_per_iteration} in {train.epochs} "
            f"epochs, but an iteration has {units} {train.dealt_by} "
            f"(train.dealt_by) to deal to the {in_epoch} updates of each; use a number that "
            "divides it."
        )


def check_algorithm(algorithm: Algorithm, rollout: RolloutConfig, prompts: PromptsConfig) -> None:
    """Refuse samples that an algorithm cannot learn from."""
    if (algorithm.best_of or 0) > rollout.group_size:
        raise ValueError(
            f"algorithm.best_of ({algorithm.best_of}) is above rollout.group_size "
            f"({rollout.group_size}); sample larger groups or train fewer."
        )
    _check_trimmed(algorithm, rollout.group_size)
    if rollout.refill and algorithm.keeps_history:
        raise ValueError(
            f"rollout.refill is {rollout.refill}, but {algorithm.type} skips no "
            "group, as equal rewards still differ from the prompt's earlier ones; use 0."
        )
    _check_transition(algorithm, rollout)
    check_steps(algorithm, rollout, rollout.num_steps)
    check_solver(algorithm, rollout)
    check_shared_noise(algorithm, rollout, prompts)


def check_guidance(algorithm: Algorithm, model: ModelConfig, *, keeps_reference: bool) -> None:
    """Refuse another guidance in training where ratios are to what was sampled with guidance.

    And one of the reference policy where nothing asks it.
    """
    if model.reference_guidance_scale is not None and not keeps_reference:
        raise ValueError(
            f"model.reference_guidance_scale is {model.reference_guidance_scale:g}, but nothing "
            "asks the reference policy; leave it out, or use algorithm.kl_coefficient"
        )
    if model.train_guidance_scale is not None and not algorithm.trains_clean:
        raise ValueError(
            f"model.train_guidance_scale is {model.train_guidance_scale:g}, but algorithm.type "
            f"{algorithm.type} takes ratios of the policy that is trained to the one that samples, "
            "which would be two policies from the start; leave it out, or use diffusion_nft, awm, "
            "dgpo or dpo."
        )


def check_precision(rollout: RolloutConfig, algorithm: Algorithm, prompts: PromptsConfig) -> None:
    """Refuse rollouts of another precision that nothing accounts for, or that there are none of."""
    if rollout.screening is not None and prompts.sample_columns:
        raise ValueError(
            "rollout.screening chooses which samples are generated, but samples come from files "
            "(prompts.sample_columns), so that none is; leave it out."
        )
    if rollout.precision == "model":
        return
    if prompts.sample_columns:
        raise ValueError(
            f"rollout.precision is {rollout.precision!r}, but samples come from files "
            "(prompts.sample_columns), so that none is generated; use 'model'."
        )
    if not (algorithm.trains_clean or algorithm.compares_with_start):
        raise ValueError(
            f"rollout.precision is {rollout.precision!r}, so that log-probs of samples are not "
            "those of the trained model, but algorithm.correction is 'none', which takes ratios "
            "to them; use 'recompute', for ratios to log-probs of the trainer's own, or 'truncate'."
        )


def check_graphs(rollout: RolloutConfig, parallel: ParallelConfig) -> None:
    """Refuse CUDA graphs of passes that several members compute together."""
    together = {
        "parallel.context_parallel": parallel.context_parallel > 1,
        "parallel.shard_weights": parallel.shard_weights,
        "parallel.stages": parallel.has_stages,
    }
    named = [name for name, is_used in together.items() if is_used]
    if rollout.cuda_graphs and named:
        raise ValueError(
            f"rollout.cuda_graphs is true, but with {named[0]} the members of a gang compute a "
            "pass together, which cannot be captured; leave one of the two out."
        )


def _check_trimmed(algorithm: Algorithm, size: int) -> None:
    """Refuse groups of which too few rewards stay to have a spread."""
    ratio = algorithm.trimmed_ratio
    if size - int(size * ratio) < 2:
        raise ValueError(
            f"algorithm.trimmed_ratio ({ratio}) leaves one reward of rollout.group_size "
            f"({size}), which has no spread; lower it or sample larger groups."
        )


def _check_transition(algorithm: Algorithm, rollout: RolloutConfig) -> None:
    """Refuse transitions that the algorithm's maths is not for."""
    transition, allowed = rollout.transition, algorithm.transitions
    if transition not in allowed:
        raise ValueError(
            f"algorithm.type {algorithm.type} is not for rollout.transition {transition}; "
            f"use {' or '.join(allowed)}."
        )
    if algorithm.needs_noise and rollout.storage != "float32":
        raise ValueError(
            f"rollout.storage is {rollout.storage}, but algorithm.type "
            f"{algorithm.type} takes the noise back out of the latents; use float32."
        )


def check_schedule(algorithm: Algorithm, schedule: ScheduleConfig) -> None:
    """Refuse layouts that train groups before an algorithm can, and what tells it nothing."""
    _check_stale_clipped(algorithm, schedule)
    if not algorithm.needs_all_rewards:
        return
    what = f"advantage_scale {algorithm.advantage_scale!r}"
    remedy = "advantage_scale 'group' or "
    if algorithm.keeps_history:
        what, remedy = algorithm.type, ""
    if schedule.layout not in (*WITH_BARRIER, "auto"):
        raise ValueError(
            f"algorithm: {what} needs all rewards of the iteration, but schedule.layout "
            f"{schedule.layout} trains groups before that; use {remedy}"
            f"layout {', '.join(WITH_BARRIER[:-1])} or {WITH_BARRIER[-1]}."
        )
    if schedule.stale_share:
        raise ValueError(
            f"schedule.max_stale_share is {schedule.max_stale_share}, but {what} needs all "
            "rewards of the iteration, which no layout with stale groups waits for; use 0."
        )


def _check_stale_clipped(algorithm: Algorithm, schedule: ScheduleConfig) -> None:
    """Refuse a bound on clipped stale pairs where no ratio is to the version that sampled."""
    if schedule.max_stale_clipped is None:
        return
    what = None
    if algorithm.trains_clean:
        what = f"algorithm.type {algorithm.type} has no ratio to the version that sampled"
    elif algorithm.compares_with_start:
        what = "algorithm.correction 'recompute' takes stale samples for fresh ones"
    if what:
        raise ValueError(
            f"schedule.max_stale_clipped is {schedule.max_stale_clipped}, but {what}, so that "
            "nothing tells how stale they are; leave it out, and bound schedule.max_stale_share."
        )


def check_workers(cluster: ClusterConfig, schedule: ScheduleConfig) -> None:
    """Refuse to have no workers that only train where some have to."""
    number, layout = cluster.rollout_workers, schedule.layout
    if cluster.trainer_workers or layout in (*COLOCATED, "auto"):
        return
    allowed = COLOCATED if number > 1 else ALONE
    if layout not in allowed:
        raise ValueError(
            f"cluster.trainer_workers is 0, and cluster.rollout_workers {number}, but "
            f"schedule.layout {layout} then needs others that train; use 1 or more, or layout "
            f"{' or '.join(allowed)}."
        )


def check_reference(algorithm: Algorithm, schedule: ScheduleConfig) -> None:
    """Refuse to have a reference policy asked where nothing is compared with it."""
    if schedule.reference == "generation" and not algorithm.kl_coefficient:
        raise ValueError(
            "schedule.reference is 'generation', but algorithm.kl_coefficient is 0, so that no "
            "loss asks the reference policy; leave it out, or set the coefficient."
        )


def check_cost(max_cost: float | None, cluster: ClusterConfig) -> None:
    """Refuse a bound on what nothing says the price of."""
    prices = cluster.price_per_hour
    if max_cost is not None and not any(prices.values()):
        raise ValueError(
            f"max_cost is {max_cost:g}, but cluster.price_per_hour has "
            f"{'only 0' if prices else 'no price'}, so it would never be spent; say what an "
            'hour of a device costs, such as {"NVIDIA H100 80GB HBM3" = 2.5}.'
        )


def check_weights(rewards: Mapping[str, RewardConfig]) -> None:
    """Refuse rewards from which nothing would be learnt."""
    if not rewards:
        raise ValueError("rewards is empty; name at least one, for example shapes = 1.0.")
    weights = {name: reward.weight for name, reward in rewards.items()}
    if not any(weights.values()):
        raise ValueError(f"rewards {weights} all weigh 0; nothing would be learnt.")


def check_history(rewards: Mapping[str, RewardConfig], algorithm: Algorithm) -> None:
    """Refuse rewards that an algorithm cannot compare with a prompt's earlier ones."""
    names = relative(rewards)
    if names and algorithm.keeps_history:
        raise ValueError(
            f"rewards.{names[0]} compares the samples of a group, but {algorithm.type} "
            "compares a prompt's rewards with its earlier ones, to which such scores say "
            "nothing; use another algorithm."
        )
    neutral = [name for name, reward in rewards.items() if reward.on_failure == "neutral"]
    if neutral and algorithm.keeps_history:
        raise ValueError(
            f"rewards.{neutral[0]}.on_failure is 'neutral', but {algorithm.type} would "
            "remember the rewards that are filled in; use 'fail', or another algorithm."
        )


def check_pools(cluster: ClusterConfig, pools: Collection[str]) -> None:
    """Refuse workers of a pool that no reward is scored by."""
    for pool in sorted(cluster.reward_workers.keys() - pools):
        raise ValueError(
            f"cluster.reward_workers starts workers of the pool {pool!r}, but no reward is "
            f"theirs; give a reward pool = {pool!r}, or leave it out."
        )
