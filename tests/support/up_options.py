"""What ``digen up`` was asked for, in tests of what it does then."""

from deployments.operation.state import Options

OPTIONS = Options(
    cluster="2-cores",
    workers=True,
    host="127.0.0.1",
    tls=False,
    prefect_auth=False,
    mlflow_auth=False,
    names=(),
    deployments="deployments/prefect.yaml",
    ports=(4200, 5000, 8786, 8787),
)
