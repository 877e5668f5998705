"""Links that sign a browser in to Prefect's pages, and the page behind them.

Prefect's pages keep the password in the browser's local storage and send it as HTTP basic auth. A
link holds a code in place of the password, as links end in logs, histories and lists of processes:
it is good for one sign-in, in the ten minutes after it was made by somebody who has the password.
"""

import base64
import hmac
import json
import secrets
import time
from hashlib import sha256
from typing import Final

import httpx
from starlette.responses import HTMLResponse

PATH: Final = "/sign-in"
VALID_SECONDS: Final = 600.0

_STORAGE_KEY: Final = "prefect-password"  # of both looks of Prefect's pages
_REFUSAL: Final = (
    "This link was used already, or is older than ten minutes. A new one is shown by digen train "
    "while it runs, and by digen status for what digen up started."
)


def link_to(api_url: str, auth: str) -> str:
    """Return a link that signs a browser in.

    Args:
        api_url: of Prefect's API, ``http://host:port/api``.
        auth: ``user:password``.
    """
    expires, nonce = int(time.time() + VALID_SECONDS), secrets.token_urlsafe(4)
    code = f"{expires:x}.{nonce}"
    return f"{api_url.removesuffix('/api')}{PATH}?code={code}.{_signature(code, auth)}"


def is_answered(api_url: str, auth: str) -> bool:
    """Say whether the server at an address has a password; nobody else's answers with it."""
    try:
        answer = httpx.get(link_to(api_url, auth), timeout=5.0)
    except httpx.HTTPError:
        return False
    return _encoded(auth) in answer.text


class SignIn:
    """The page that such links lead to; each is good once."""

    def __init__(self, auth: str) -> None:
        """Take links that were made with a password.

        Args:
            auth: ``user:password``.
        """
        self._auth = auth
        self._used: dict[str, float] = {}  # code -> when it is too old anyway

    def page(self, code: str) -> HTMLResponse:
        """Return the page for a code: it puts the password where Prefect's pages look for it."""
        if not self._takes(code):
            return _answer(f"<p>{_REFUSAL}</p>", "'none'", 403)
        nonce = secrets.token_urlsafe(12)
        item = f"{json.dumps(_STORAGE_KEY)}, {json.dumps(_encoded(self._auth))}"
        script = f"localStorage.setItem({item}); location.replace('/')"
        return _answer(f'<script nonce="{nonce}">{script}</script>', f"'nonce-{nonce}'", 200)

    def _takes(self, code: str) -> bool:
        signed, _, signature = code.rpartition(".")
        if not hmac.compare_digest(_signature(signed, self._auth).encode(), signature.encode()):
            return False
        expires, now = float(int(signed.partition(".")[0], 16)), time.time()
        self._used = {used: until for used, until in self._used.items() if until > now}
        if expires < now or code in self._used:
            return False
        self._used[code] = expires
        return True


def _encoded(auth: str) -> str:
    """Return a user and password as basic auth has them."""
    return base64.b64encode(auth.encode()).decode()


def _signature(code: str, auth: str) -> str:
    digest = hmac.digest(auth.encode(), f"sign-in {code}".encode(), sha256)
    return base64.urlsafe_b64encode(digest[:12]).decode()


def _answer(body: str, scripts: str, status: int) -> HTMLResponse:
    """Return a page that nobody keeps, and that does nothing but what it is made for."""
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"default-src 'none'; script-src {scripts}",
        "Referrer-Policy": "no-referrer",
    }
    head = '<!doctype html><meta charset="utf-8"><title>Signing in to Prefect</title>'
    return HTMLResponse(head + body, status, headers)
