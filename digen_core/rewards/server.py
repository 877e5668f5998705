"""A server that scores, asked over HTTP, so that its model and its libraries live somewhere else.

Whatever the server does, a request ends after ``timeout`` seconds, and of its answer no more is
read than an honest one can hold. Nothing is decompressed, no redirect is followed, and a token is
in no message.
"""

import asyncio
import math
import os
import ssl
from typing import Final

import httpx

from digen_core.config.rewards.servers import ServerReward
from digen_core.errors import ConfigError
from digen_core.inputs.addresses import HIDDEN
from digen_core.inputs.text import printable
from digen_core.rewards.attempts import PermanentError, TransientError

ANSWER_BYTES: Final = 64 * 1024
"""How long any answer may be, beside what is due to what was asked."""

MESSAGE_BYTES: Final = 4096
"""How much of an error page is read."""

_PASSING: Final = {408, 425, 429}  # like all of 500 and above: it may be better in a while


class NoAnswerError(TransientError):
    """A server cannot be reached, or said nothing whole in time."""


class RefusedError(PermanentError):
    """A server refused a request; ``status`` says how."""

    status = 0


class Server:
    """Sends a reward's requests."""

    def __init__(self, config: ServerReward, headers: dict[str, str]) -> None:
        """Open no connection yet.

        Args:
            config: of the reward.
            headers: of each request, beside those of every reward.

        Raises:
            ConfigError: the url is none, or the token's environment variable holds none.
        """
        _check(config.url)
        self._timeout, self._token = config.timeout, _token(config)
        self._headers = headers | {"Accept-Encoding": "identity"}
        if self._token:
            self._headers["Authorization"] = f"Bearer {self._token}"
        self._ssl: ssl.SSLContext = httpx.create_ssl_context()  # reading it takes a while

    def client(self, connections: int = 1) -> httpx.AsyncClient:
        """Return what keeps connections; the limit of a request is one of all its parts together.

        Args:
            connections: most at the same time.
        """
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.AsyncClient(
            headers=self._headers, timeout=None, verify=self._ssl, limits=limits
        )

    async def ask(
        self, client: httpx.AsyncClient, url: str, body: bytes | None, limit: int, about: str = ""
    ) -> bytes:
        """Return the answer to a request.

        Args:
            client: of this server.
            url: to post to.
            body: to post; None: nothing, it is a GET.
            limit: most bytes of the answer.
            about: says in an error about what the answer was: " for 2 samples".

        Raises:
            TransientError: the server did not answer in time, or could not.
            PermanentError: it refused the request, or its answer is too long or compressed.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._ask(client, url, body, limit, about)
        except TimeoutError as error:
            raise NoAnswerError(f"{url} gave no whole answer in {self._timeout:g} s") from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise NoAnswerError(f"{url} cannot be reached: {reason}") from error

    async def _ask(
        self, client: httpx.AsyncClient, url: str, body: bytes | None, limit: int, about: str
    ) -> bytes:
        method = "GET" if body is None else "POST"
        async with client.stream(method, url, content=body) as response:
            if response.has_redirect_location:
                raise PermanentError(
                    f"{url} answered {response.status_code}, a redirect, which is not followed; "
                    "set the reward's url to where it leads"
                )
            if response.status_code != httpx.codes.OK:
                raise await self._trouble(url, response)
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                raise PermanentError(f"{url} answered in {encoding}, but was asked for identity")
            content = await _read(response, limit + 1)
            if len(content) > limit:
                raise PermanentError(f"{url} answered more than {limit} bytes{about}")
            return content

    async def _trouble(self, url: str, response: httpx.Response) -> Exception:
        """Return the error that an answer is, with the beginning of its page, without the token."""
        beginning = (await _read(response, MESSAGE_BYTES)).decode(errors="replace")
        if self._token:
            beginning = beginning.replace(self._token, HIDDEN)
        status = response.status_code
        text = f"{url} answered {status}: {printable(' '.join(beginning.split()))[:200]}"
        if status in _PASSING or status >= 500:
            return TransientError(text, _seconds(response.headers.get("Retry-After", "")))
        if status in (401, 403) and not self._token:
            text += "; name the environment variable that holds a token: token_variable"
        refusal = RefusedError(text)
        refusal.status = status
        return refusal


def _token(config: ServerReward) -> str:
    """Return the token that a reward sends; "" if it sends none."""
    if config.token_variable is None:
        return ""
    token = os.environ.get(config.token_variable)
    where = f"the reward of {config.url} takes its token from the environment variable "
    if not token:
        raise ConfigError(f"{where}{config.token_variable}, which is not set on this worker")
    # Of others the errors of what sends them tell the value.
    if not all("!" <= letter <= "~" for letter in token):
        raise ConfigError(
            f"{where}{config.token_variable}, whose value has a blank, a line's end or a letter "
            "beyond ASCII in it; export the token alone"
        )
    return token


def _check(url: str) -> None:
    """Check that a request can be sent to an address."""
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL as error:
        raise ConfigError(f"the reward's url {url} is none: {error}") from error
    if not host:
        raise ConfigError(f"the reward's url {url} is none: it names no host")


async def _read(response: httpx.Response, count: int) -> bytes:
    """Return the first bytes of a body as they came; what follows is not waited for."""
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) >= count:
            break
    return bytes(content[:count])


def _seconds(retry_after: str) -> float:
    """Return the seconds that a server asks to wait; 0 if it says nothing, or a date."""
    try:
        seconds = float(retry_after)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0
