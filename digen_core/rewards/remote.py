"""A scorer that answers over HTTP, in a protocol of digen's own."""

import asyncio
from collections.abc import Sequence
from typing import Final

import httpx
import torch
from torch import Tensor

from digen_core.config.rewards.servers import RemoteConfig
from digen_core.data.prompts import Metadata
from digen_core.inputs.text import number_of
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.remote_protocol import (
    CONTENT_TYPES,
    Request,
    decode_answer,
    encode_request,
)
from digen_core.rewards.server import ANSWER_BYTES, Server

ANSWER_BYTES_PER_SAMPLE: Final = 1024
"""How much longer an answer may be for each sample: some 50 components of 20 digits."""


class Remote:
    """Scores samples by asking a server, batch by batch."""

    def __init__(self, config: RemoteConfig, device: torch.device) -> None:
        """Open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            ConfigError: the url is none, or the token's environment variable is not set.
        """
        self._config = config
        self._server = Server(config, {"Content-Type": CONTENT_TYPES[config.body]})

    def __call__(
        self,
        samples: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata] = (),
        sources: Tensor | None = None,
        more_sources: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B] for each component.

        The server is shown the images that they are edits of, too, sources [B, 3, H, W] and what
        others their prompts have, [n, 3, H, W] each.

        Raises:
            TransientError: the server did not answer in time, or could not.
            PermanentError: it refused the request, or its answer is not of the protocol.
        """
        request = Request(
            as_pixels(samples),
            prompts,
            metadata or [{}] * len(prompts),
            None if sources is None else as_pixels(sources),
            None if more_sources is None else [as_pixels(own) for own in more_sources],
        )
        columns: dict[str, list[float]] = {}
        for found in asyncio.run(self._ask_for_all(request)):
            if columns and found.keys() != columns.keys():
                raise PermanentError(
                    f"{self._config.url} answered {sorted(found)} for one batch and "
                    f"{sorted(columns)} for another"
                )
            for name, values in found.items():
                columns.setdefault(name, []).extend(values)
        return {name: torch.tensor(v, dtype=torch.float64) for name, v in columns.items()}

    async def _ask_for_all(self, request: Request) -> list[dict[str, list[float]]]:
        """Ask for one batch after the other; asynchronously, as only that can be ended in time."""
        answers, size = [], self._config.batch_size
        if self._config.sees == "groups":
            size = len(request.prompts)
        async with self._server.client() as client:
            for start in range(0, len(request.prompts), size):
                answers.append(await self._ask(client, request.of(slice(start, start + size))))
        return answers

    async def _ask(self, client: httpx.AsyncClient, request: Request) -> dict[str, list[float]]:
        url, count = self._config.url, len(request.prompts)
        body = encode_request(request, self._config.body)
        limit = ANSWER_BYTES + ANSWER_BYTES_PER_SAMPLE * count
        content = await self._server.ask(
            client, url, body, limit, f" for {number_of(count, 'sample')}"
        )
        try:
            return decode_answer(content, count)
        except ValueError as error:
            raise PermanentError(f"{url} {_about(error)}") from error


def _about(error: ValueError) -> str:
    """Say what is wrong with an answer."""
    text = str(error)
    return text if text.startswith("answered") else f"answered what is not JSON: {text}"
