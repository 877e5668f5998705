"""``digen plan``: the fastest layout, split and sizes for a config on a cluster, by simulation."""

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from rich.console import Console

from deployments.views.plans.row import Row, row_of
from digen_core.config.run import RunConfig
from digen_core.data.prompts import prompts_with_steps
from digen_core.errors import UserError
from digen_core.planning.candidates import (
    Candidate,
    MemoryOf,
    candidates,
    leaves_gangs_open,
    may_be_staged,
)
from digen_core.planning.capacity import Fit, ShortageError, fit_recipe
from digen_core.planning.cluster_plan import (
    FASTEST,
    Aim,
    ClusterPlan,
    Exchanged,
    Priced,
    costs_from,
    plan_candidates,
)
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.memory import Memory, MemoryIn
from digen_core.planning.profile import load_profile
from digen_core.planning.spending import Objective
from digen_core.planning.spending.rates import check_rates

if TYPE_CHECKING:
    from digen_core.planning.sizes import Sizes


def plan(
    config: RunConfig, cluster: Cluster, aim: Aim = FASTEST, *, saying: str = "planning"
) -> list[Row]:
    """Return plans as they are shown, the best first; arguments and errors as of ``plans_for``."""
    return [row_of(own) for own in plans_for(config, cluster, aim, saying=saying)]


def plans_for(
    config: RunConfig,
    cluster: Cluster,
    aim: Aim = FASTEST,
    *,
    may_code: bool = False,
    saying: str = "planning",
) -> list[ClusterPlan]:
    """Return the best plan and its runners-up, the best first.

    Args:
        config: of the run; its layout, split, fragment and pack size are searched for, with packs
            up to its own (in each share of a gang that is found) and stale groups up to its
            schedule.max_stale_share.
        cluster: the devices, and what a step and a pack cost, if ``schedule.profile`` does not say.
            If neither does, the costs are estimated from the model's size; where gangs are left
            open, they are searched for, too.
        aim: what is the best.
        may_code: cuts between stages, where links are slower than these.
        saying: what a terminal shows meanwhile.

    Raises:
        UserError: the costs are not known, or no layout fits the devices, or they do not say what
            they take of what is aimed at.
    """
    if aim.spent is not None:
        check_rates(cluster, aim.spent)
    schedule = config.schedule
    profile = load_profile(schedule.profile) if schedule.profile else None
    estimated = costs_from(config, cluster) == "data sheets"
    found = _candidates(config, cluster, searched=estimated, may_code=may_code)
    priced: Priced = attrgetter("cluster")
    sent = None
    if estimated or cluster.links:
        from deployments.views.size import size  # torch and diffusers: seconds to import

        sizes = size(config.asking("training"))
        priced = _estimating(sizes) if estimated else priced
        sent = _exchanging(sizes) if cluster.links else None
    prompts = prompts_with_steps(config)
    with Console(stderr=True).status(saying):  # many kinds of devices take a minute
        return plan_candidates(found, priced, profile, sent, aim, prompts)


def aim_of(objective: Objective, within: float | None) -> Aim:
    """Return what the best plan is to have.

    Raises:
        UserError: the share is none, or says nothing as the fastest plan is asked for.
    """
    if within is not None and not 0 <= within < inf:
        raise UserError(f"--within is {within}; use a share of 0 or more, such as 0.03 for 3%")
    if within is not None and objective == "seconds":
        raise UserError(
            f"--within is {within}: how much slower than the fastest the best plan may be; give "
            "--objective money or energy with it"
        )
    return Aim(objective, within)


def _exchanging(sizes: "Sizes") -> Exchanged:
    from digen_core.planning.sizes import sent_of

    return lambda own: sent_of(own, sizes)


def _estimating(sizes: "Sizes") -> Priced:
    from digen_core.planning.estimate import with_estimates

    return lambda own: with_estimates(own.cluster, sizes, own.config)


def _candidates(
    config: RunConfig, cluster: Cluster, *, searched: bool, may_code: bool
) -> list[Candidate]:
    """Return what the devices' memory leaves to plan with: anything, if none has a capacity.

    Args:
        config: of the run.
        cluster: the devices.
        searched: put them in gangs where the cluster file leaves these open.
        may_code: cuts between stages.

    Raises:
        UserError: the recipe does not fit; the message says what would.
    """
    if not any(group.capacity for group in cluster.devices):
        rollout, packs = config.rollout, config.train.pack_size
        room = Fit(
            cluster, rollout.group_size, rollout.batch_size or 1, packs, helps=True, assists=True
        )
        return [Candidate(config, cluster, room)]
    from deployments.views.memory import needs_of  # torch and diffusers, as above

    def memory_of(own: RunConfig, size: int) -> Memory:
        return needs_of(own, size).memory

    try:
        if searched and leaves_gangs_open(cluster):
            with Console(stderr=True).status("counting the memory of gangs of each size"):
                return _in_gangs(config, cluster, memory_of, may_code)
        room = _fitting(config, cluster, lambda size: memory_of(config, size))
        return [Candidate(config, cluster, room)]
    except ShortageError as error:
        raise UserError(f"{error}; {_advice(config, cluster)}") from error


def _in_gangs(
    config: RunConfig, cluster: Cluster, memory_of: MemoryOf, may_code: bool
) -> list[Candidate]:
    """Return gangs that fit: in stages, too, where no device holds the whole model.

    Raises:
        ShortageError: nothing fits.
    """
    from digen_core.models.image_size import read_settings
    from digen_core.planning.model_settings import settings_folder
    from digen_core.planning.stages.candidates import staged_candidates
    from digen_core.planning.stages.codecs import CODECS

    folder = settings_folder(config.model.path)
    found = list[Candidate]()
    parallel = config.parallel
    refused = UserError(
        f"no gang of the cluster holds the model in {parallel.stages} stages; leave out "
        "parallel.stages for the best number"
    )
    if parallel.stages_by_size:
        raise UserError(
            "parallel.stages_by_size is set, but the stages of gangs are planned: leave it out"
        )
    if parallel.stages == 1:
        try:
            found = candidates(config, cluster, read_settings(folder), memory_of)
        except ShortageError as error:
            refused = error
    if any(not own.config.parallel.shard_weights for own in found) or not may_be_staged(cluster):
        staged = []
    elif config.model.cuts:
        raise UserError(
            "model.cuts is set, but the cuts of stages are planned: leave it out, and give "
            "--codecs for cuts that are coded"
        )
    else:
        from deployments.views.size import size
        from digen_core.planning.memory_count import text_encoder_bytes
        from digen_core.planning.stages.blocks import chain_of

        staged = staged_candidates(
            config,
            cluster,
            chain_of(config, folder),
            size(config),
            CODECS if may_code else CODECS[:1],
            text_encoder_bytes(config.model, folder),
            memory_of,
        )
    if not (found or staged):
        raise refused
    return [*staged, *found]


def _fitting(config: RunConfig, cluster: Cluster, memory_in: MemoryIn) -> Fit:
    memories = {size: memory_in(size) for size in {group.members for group in cluster.devices}}
    return fit_recipe(config, cluster, memories)


def _advice(config: RunConfig, cluster: Cluster) -> str:
    """Return what to do about a recipe that does not fit the devices."""
    from digen_core.planning.model_settings import settings_folder
    from digen_core.planning.remedies import remedy

    def fits(memory_in: MemoryIn, size: int | None) -> bool:
        devices = cluster if size is None else cluster.in_gangs(size)
        try:
            return devices is not None and bool(_fitting(config, devices, memory_in))
        except ShortageError:
            return False

    found = remedy(config, settings_folder(config.model.path), fits)
    return f"it fits with {found}" if found else "use devices with more"
