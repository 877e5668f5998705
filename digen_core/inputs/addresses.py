"""Addresses with a password or a token in them: refused in configs, and not shown anywhere.

What a config says stands in the run's folder, in MLflow and in Prefect, for all who may look there.
"""

import re
from typing import Final

from digen_core.errors import UserError

HIDDEN: Final = "***"

_USER: Final = re.compile(r"(?P<scheme>\w[\w+.-]{0,20})://(?P<user>[^\s/?#'\"<>]*)@")
_PARAMETER: Final = re.compile(r"(?P<name>[?&;#][\w.~%\[\]-]+)=(?P<value>[^&;#\s'\"<>)]+)")
_SECRET_NAME: Final = re.compile(
    r"token(?!s)|secret|passw|pwd|signature|credential|(api|access|account|auth|subscription)[-_.]?key"
    r"|(^|[-_.])(auth|authorization|key|pass|sas|sig)($|[-_.])",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """Return a text in which addresses are without users, passwords and secret parameters."""
    text = _USER.sub(rf"\g<scheme>://{HIDDEN}@", text)
    return _PARAMETER.sub(_without_value, text)


def secret_in(address: str) -> str | None:
    """Return what is secret in an address, in words; None if nothing is.

    A user's name alone is one in ``http://TOKEN@host``, but not in a database's address.
    """
    if user := _USER.search(address):
        is_web = user["scheme"].lower() in ("http", "https")
        if user["user"] and (is_web or ":" in user["user"]):
            return "a user or a password"
    for parameter in _PARAMETER.finditer(address):
        if _is_secret(parameter):
            return f"the parameter {parameter['name'][1:]}"
    return None


def public_address(label: str, address: str, instead: str) -> str:
    """Return an address in which nothing is secret.

    Args:
        label: what it is the address of, for the error.
        address: to check.
        instead: where the secret belongs, for the error.

    Raises:
        UserError: something is.
    """
    if secret := secret_in(address):
        raise UserError(
            f"{label} is {redacted(address)}, with {secret} in it, which would stand in the run's "
            f"folder, MLflow and Prefect; leave that out, and {instead}"
        )
    return address


def _without_value(parameter: re.Match[str]) -> str:
    return f"{parameter['name']}={HIDDEN}" if _is_secret(parameter) else parameter[0]


def _is_secret(parameter: re.Match[str]) -> bool:
    is_named_so = _SECRET_NAME.search(parameter["name"][1:]) is not None
    return is_named_so and not parameter["value"].startswith(HIDDEN)
