"""A scorer that answers over HTTP, so that its model and its libraries live somewhere else.

Whatever the server does, a request ends after ``timeout`` seconds, and of its answer no more is
read than one of the protocol can hold. Nothing is decompressed, and no redirect is followed.
"""

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import Final

import httpx
import torch
from torch import Tensor

from digen_core.config.rewards import RemoteConfig
from digen_core.data.prompts import Metadata
from digen_core.errors import ConfigError
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.remote_protocol import (
    CONTENT_TYPES,
    Pixels,
    decode_answer,
    encode_request,
)
from digen_core.rewards.scoring import PermanentError, TransientError

ANSWER_BYTES: Final = 64 * 1024
ANSWER_BYTES_PER_SAMPLE: Final = 1024
"""How long an answer may be: some 50 components of 20 digits for each sample."""

MESSAGE_BYTES: Final = 4096
"""How much of an error page is read."""

_PASSING: Final = {408, 425, 429}  # like all of 500 and above: it may be better in a while


class Remote:
    """Scores samples by asking a server, batch by batch."""

    def __init__(self, config: RemoteConfig, device: torch.device) -> None:
        """Open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            ConfigError: the token's environment variable is not set.
        """
        self._config = config
        headers = {"Content-Type": CONTENT_TYPES[config.body], "Accept-Encoding": "identity"}
        if config.token_variable is not None:
            token = os.environ.get(config.token_variable)
            if not token:
                raise ConfigError(
                    f"the remote reward {config.url} takes its token from the environment variable "
                    f"{config.token_variable}, which is not set on this worker"
                )
            headers["Authorization"] = f"Bearer {token}"
        self._headers = headers
        self._ssl: ssl.SSLContext = httpx.create_ssl_context()  # reading it takes a while

    def __call__(
        self, samples: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata] = ()
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B] for each component.

        Raises:
            TransientError: the server did not answer in time, or could not.
            PermanentError: it refused the request, or its answer is not of the protocol.
        """
        pixels = as_pixels(samples)
        columns: dict[str, list[float]] = {}
        for found in asyncio.run(self._ask_for_all(pixels, prompts, metadata)):
            if columns and found.keys() != columns.keys():
                raise PermanentError(
                    f"{self._config.url} answered {sorted(found)} for one batch and "
                    f"{sorted(columns)} for another"
                )
            for name, values in found.items():
                columns.setdefault(name, []).extend(values)
        return {name: torch.tensor(v, dtype=torch.float64) for name, v in columns.items()}

    async def _ask_for_all(
        self, pixels: Pixels, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> list[dict[str, list[float]]]:
        """Ask for one batch after the other; asynchronously, as only that can be ended in time."""
        answers, size = [], self._config.batch_size
        # The limit of a request is one of all its parts together; see _post.
        async with httpx.AsyncClient(
            headers=self._headers, timeout=None, verify=self._ssl
        ) as client:
            for start in range(0, len(prompts), size):
                batch = slice(start, start + size)
                answer = self._ask(client, pixels[batch], prompts[batch], metadata[batch])
                answers.append(await answer)
        return answers

    async def _ask(
        self,
        client: httpx.AsyncClient,
        pixels: Pixels,
        prompts: Sequence[str],
        metadata: Sequence[Metadata],
    ) -> dict[str, list[float]]:
        url, timeout = self._config.url, self._config.timeout
        body = encode_request(pixels, prompts, self._config.body, metadata)
        try:
            async with asyncio.timeout(timeout):
                content = await self._post(client, body, len(prompts))
        except TimeoutError as error:
            raise TransientError(f"{url} gave no whole answer in {timeout:g} s") from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise TransientError(f"{url} cannot be reached: {reason}") from error
        try:
            return decode_answer(content, len(prompts))
        except ValueError as error:
            raise PermanentError(f"{url} {_about(error)}") from error

    async def _post(self, client: httpx.AsyncClient, body: bytes, count: int) -> bytes:
        """Return the answer to a request about ``count`` samples.

        Raises:
            TransientError: the server is in trouble.
            PermanentError: it refused, redirects, or its answer is too long or compressed.
        """
        url = self._config.url
        async with client.stream("POST", url, content=body) as response:
            status = response.status_code
            if response.has_redirect_location:
                raise PermanentError(
                    f"{url} answered {status}, a redirect, which is not followed; set the reward's "
                    "url to where it leads"
                )
            if status != httpx.codes.OK:
                kind = TransientError if status in _PASSING or status >= 500 else PermanentError
                beginning = await _read(response, MESSAGE_BYTES)
                text = " ".join(beginning.decode(errors="replace").split())
                raise kind(f"{url} answered {status}: {text[:200]}")
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                raise PermanentError(f"{url} answered in {encoding}, but was asked for identity")
            limit = ANSWER_BYTES + ANSWER_BYTES_PER_SAMPLE * count
            content = await _read(response, limit + 1)
            if len(content) > limit:
                raise PermanentError(f"{url} answered more than {limit} bytes for {count} samples")
            return content


async def _read(response: httpx.Response, count: int) -> bytes:
    """Return the first bytes of a body as they came; what follows is not waited for."""
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) >= count:
            break
    return bytes(content[:count])


def _about(error: ValueError) -> str:
    """Say what is wrong with an answer."""
    text = str(error)
    return text if text.startswith("answered") else f"answered what is not JSON: {text}"
