"""A description, in words, of what is up."""

from deployments.operation.services import DASHBOARD, DASK, MLFLOW, PREFECT
from deployments.operation.sign_in import link_to
from deployments.operation.state import ENVIRONMENT, FOLDER, State
from digen_core.inputs.addresses import redacted

SIGN_IN = f"a new link: digen status, in a terminal; or digen:PASSWORD of {FOLDER / 'password'}"
RUN = "prefect deployment run post-train/shapes --watch"


def describe(state: State, *, is_terminal: bool) -> str:
    """Return the addresses, what has ended, and what to do next.

    Args:
        state: of what is up.
        is_terminal: whether a person reads it: logs are not told how to sign in.
    """
    addresses, auth = state.addresses, state.environment.get("PREFECT_API_AUTH_STRING")
    lines = []
    for label, name in (
        ("Prefect", PREFECT),
        ("MLflow", MLFLOW),
        ("Dask", DASHBOARD),
        ("scheduler", DASK),
    ):
        address = redacted(addresses[name].removesuffix("/api"))
        if name == PREFECT and auth and is_terminal:
            address = link_to(addresses[name], auth)
        reused = "   (ran before; digen down leaves it)" if name in state.reused else ""
        lines.append(f"{label:<11} {address}{reused}")
    ended = [service for service in state.services if not service.process]
    lines += [f"{service.name} has ended: {service.log} says why" for service in ended]
    if auth:
        lines.append(f"{'sign in':<11} {'by that link, once; ' * is_terminal}{SIGN_IN}")
    lines += [
        f"{'run':<11} {RUN}",
        f"{'digen train':<11} set -a; . {ENVIRONMENT}; set +a    # then it uses these workers, too",
        f"{'end':<11} digen down",
    ]
    return "\n".join(lines) + "\n"
