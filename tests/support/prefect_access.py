"""What a program sends to a Prefect server that has a password, if it does not use its client."""

from uuid import uuid4

import httpx


def headers_of(api_url: str, auth: str) -> dict[str, str]:
    """Return the headers of requests that may change something.

    Args:
        api_url: of the API.
        auth: ``user:password``.
    """
    basic, client = httpx.BasicAuth(*auth.split(":")), str(uuid4())
    token = httpx.get(f"{api_url}/csrf-token", params={"client": client}, auth=basic).json()
    request = next(basic.auth_flow(httpx.Request("GET", api_url)))
    return {
        "Authorization": request.headers["Authorization"],
        "Prefect-Csrf-Client": client,
        "Prefect-Csrf-Token": token["token"],
    }
