"""What the work of a gang in stages costs, from what its stages and links take."""

from collections.abc import Callable
from dataclasses import replace

from digen_core.config.run import RunConfig
from digen_core.control.costs import DeviceCosts, Linear
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.sizes import Sizes
from digen_core.planning.stages.pipeline import Way
from digen_core.planning.stages.plans import Plan


def costs_of(
    plan: Plan, leader_rate: float, cluster: Cluster, config: RunConfig, sizes: Sizes
) -> DeviceCosts:
    """Return the seconds of a gang's work, on lines through one item and the most there are.

    A KL, and a loss that compares with another policy, ask for the velocities of a pair once
    more: all costs of a plan are of a reference policy that is asked in training. The leader
    decodes alone, and encodes what samples come from files.

    Args:
        plan: stages at the speed of training.
        leader_rate: FLOP/s of the leader, likewise.
        cluster: shares of its devices' peak that denoising and training reach.
        config: of the run.
        sizes: of its model.
    """
    training, faster = plan.pipeline, cluster.mfu_denoise / cluster.mfu_train
    denoising = replace(training, there=_sped_up(training.there, faster))
    again = bool(config.algorithm.kl_coefficient) + config.other_velocities

    decode = sizes.decode_flops / (leader_rate * faster)
    velocities = config.velocities_with(references=False)

    def step(num_samples: int) -> float:
        encoding = num_samples * decode * config.encodings_per_step
        return velocities * denoising.step_seconds(num_samples) + encoding

    def pack(num_pairs: int) -> float:
        return training.pack_seconds(num_pairs) + again * training.step_seconds(num_pairs)

    return DeviceCosts(
        step=_line(step, config.batch_size),
        decode=Linear(per_item=decode),
        pack=_line(pack, config.train.pack_size),
    )


def _sped_up(way: Way, factor: float) -> Way:
    return replace(way, heads=way.heads / factor, work=way.work / factor)


def _line(seconds: Callable[[int], float], most: int) -> Linear:
    """Return the line through the seconds of one item and of the most."""
    one, all_ = seconds(1), seconds(max(most, 2))
    slope = (all_ - one) / (max(most, 2) - 1)
    return Linear(fixed=max(one - slope, 0.0), per_item=slope)
