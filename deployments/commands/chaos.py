"""The command ``digen chaos``: runs in which processes, links and disks fail."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deployments.overrides import ConfigTokens, config_of
from digen_core.errors import UserError


def chaos(
    *tokens: ConfigTokens,
    seed: int = 0,
    stories: int = 20,
    first: int = 0,
    jobs: int = 1,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    services: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
) -> int:
    """Train again and again while something fails, and compare with a run in which nothing does.

    Example: digen chaos chaos --stories 10
    Example: digen chaos chaos --seed 3 --first 7 --stories 1 --schedule.layout tcss

    A story kills, freezes or slows processes, loses their packets, fills the disk or damages files,
    at points drawn from the seed. What is left at the end (weights, samples, metrics, MLflow,
    processes) is held against the run in peace. It ends with 1 if something differs.

    Args:
        tokens: CONFIG and settings, as in 'digen train'.
        seed: Of the stories: the same seed tells the same ones.
        stories: How many.
        first: Number of the first: a long campaign may be played in parts, and a story again.
        jobs: Stories that are played at the same time.
        only: Kinds of faults to draw from: kill, freeze, pause, slow, cut, fill, read-only, flip,
            remove.
        services: To start beside each run, to be struck, too: mlflow, scorer (the config's rewards
            behind HTTP), scheduler (of Dask, with workers that are not the run's own).
    """
    config = config_of(tokens, "digen chaos")
    if stories < 1 or jobs < 1 or seed < 0 or first < 0:
        raise UserError(
            f"--stories is {stories}, --jobs {jobs}, --seed {seed} and --first {first}; use "
            "stories and jobs of 1 or more, seed and first of 0 or more"
        )

    from deployments.chaos.story import KINDS, SERVICES, Kind, Service

    unknown = [name for name in only or [] if name not in KINDS]
    if unknown:
        raise UserError(f"--only names {unknown[0]!r}; use some of {', '.join(KINDS)}")
    unknown = [name for name in services or [] if name not in SERVICES]
    if unknown:
        raise UserError(f"--services names {unknown[0]!r}; use some of {', '.join(SERVICES)}")
    if config.num_iterations < 2:
        raise UserError("num_iterations is 1; stories need 2 or more")
    if config.cluster.address is not None:
        raise UserError(
            "cluster.scheduler_address is set; stories are told of workers that runs start "
            "themselves: leave it out"
        )

    from digen_core.preflight.run import check_run

    check_run(config)

    from deployments.chaos.campaign import Campaign
    from deployments.views.chaos import print_campaign

    name = f"chaos-{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path(config.tracking.runs_dir).resolve() / name
    beside: list[Service] = [name for name in SERVICES if name in (services or [])]
    campaign = Campaign(config, tokens, folder, beside)
    kinds: list[Kind] = [kind for kind in KINDS if only is None or kind in only]
    told = campaign.play(seed, range(first, first + stories), jobs, kinds)
    return 0 if print_campaign(told, campaign.impossible, folder) else 1
