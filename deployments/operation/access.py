"""Keys and passwords between the parts: TLS of Dask, basic auth of Prefect and of MLflow."""

import secrets
from collections.abc import Mapping

from distributed import Security

from deployments.operation.state import FOLDER, Options, write_privately
from tasks.cluster.cluster import as_environment
from tasks.cluster.listening import ENCRYPTED, tls_settings

USER = "digen"
CERTIFICATE, KEY = FOLDER / "tls" / "certificate.pem", FOLDER / "tls" / "key.pem"
PASSWORD = FOLDER / "password"
MLFLOW_AUTH = FOLDER / "mlflow-auth.ini"


def make_access(options: Options, *, is_prefect_ours: bool, is_mlflow_ours: bool) -> dict[str, str]:
    """Make what the options ask for, and return the variables by which a process gets in.

    Servers that ran before have passwords of their own, which processes find as this one does.
    """
    environment: dict[str, str] = {}
    if options.tls:
        environment |= _tls()
    if options.prefect_auth and is_prefect_ours:
        environment["PREFECT_API_AUTH_STRING"] = f"{USER}:{_password()}"
    if options.mlflow_auth and is_mlflow_ours:
        environment["MLFLOW_TRACKING_USERNAME"] = USER
        environment["MLFLOW_TRACKING_PASSWORD"] = _password()
    return environment


def _password() -> str:
    """Return the password of this folder, the same each time: MLflow keeps the first one."""
    if not PASSWORD.exists():
        PASSWORD.parent.mkdir(parents=True, exist_ok=True)
        write_privately(PASSWORD, secrets.token_urlsafe(18))
    return PASSWORD.read_text()


def mlflow_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which MLflow's server knows who may come in."""
    servers: dict[str, str] = {}
    if "MLFLOW_TRACKING_PASSWORD" in environment:
        write_privately(MLFLOW_AUTH, _mlflow_auth(environment["MLFLOW_TRACKING_PASSWORD"]))
        servers["MLFLOW_AUTH_CONFIG_PATH"] = str(MLFLOW_AUTH.resolve())
        servers["MLFLOW_FLASK_SERVER_SECRET_KEY"] = secrets.token_hex(16)
    return servers


def dask_security(options: Options) -> Security:
    """Return how this process talks to the Dask scheduler."""
    if not options.tls:
        return Security()
    return Security(
        require_encryption=True,
        tls_ca_file=str(CERTIFICATE),
        tls_client_cert=str(CERTIFICATE),
        tls_client_key=str(KEY),
    )


def _tls() -> dict[str, str]:
    """Make one self-signed pair, which is authority, scheduler, worker and client at once."""
    made = Security.temporary()
    CERTIFICATE.parent.mkdir(parents=True, exist_ok=True)
    write_privately(CERTIFICATE, made.tls_ca_file)
    write_privately(KEY, made.tls_client_key)
    return as_environment(ENCRYPTED | tls_settings(CERTIFICATE.resolve(), KEY.resolve()))


def _mlflow_auth(password: str) -> str:
    database = str((FOLDER / "mlflow-users.db").resolve()).replace("%", "%%")  # it interpolates
    return f"""\
[mlflow]
default_permission = READ
database_uri = sqlite:///{database}
admin_username = {USER}
admin_password = {password}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""
