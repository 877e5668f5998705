"""What is up, in words."""

from deployments.operation.services import DASHBOARD, DASK, MLFLOW, PREFECT
from deployments.operation.state import ENVIRONMENT, FOLDER, State
from digen_core.addresses import redacted

RUN = "prefect deployment run post-train/shapes --watch"


def describe(state: State) -> str:
    """Return the addresses, what has ended, and what to do next."""
    addresses = state.addresses
    lines = []
    for label, name in (
        ("Prefect", PREFECT),
        ("MLflow", MLFLOW),
        ("Dask", DASHBOARD),
        ("scheduler", DASK),
    ):
        address = redacted(addresses[name].removesuffix("/api"))
        reused = "   (ran before; digen down leaves it)" if name in state.reused else ""
        lines.append(f"{label:<11} {address}{reused}")
    ended = [service for service in state.services if not service.process]
    lines += [f"{service.name} has ended: {service.log} says why" for service in ended]
    if "PREFECT_API_AUTH_STRING" in state.environment:
        lines.append(f"{'password':<11} of the user digen, in {FOLDER / 'password'}")
    lines += [
        f"{'run':<11} {RUN}",
        f"{'digen train':<11} set -a; . {ENVIRONMENT}; set +a    # then it uses these workers, too",
        f"{'end':<11} digen down",
    ]
    return "\n".join(lines) + "\n"
