"""A scorer that answers over HTTP, so that its model and its libraries live somewhere else."""

import os
from collections.abc import Sequence
from typing import Final

import httpx
import torch
from torch import Tensor

from digen_core.config import ConfigError
from digen_core.data import Metadata
from digen_core.reward_config import RemoteConfig
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.remote_protocol import (
    CONTENT_TYPES,
    Pixels,
    decode_answer,
    encode_request,
)
from digen_core.rewards.scoring import PermanentError, TransientError

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
        headers = {"Content-Type": CONTENT_TYPES[config.body]}
        if config.token_variable is not None:
            token = os.environ.get(config.token_variable)
            if not token:
                raise ConfigError(
                    f"the remote reward {config.url} takes its token from the environment variable "
                    f"{config.token_variable}, which is not set on this worker"
                )
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(headers=headers, timeout=config.timeout)

    def __call__(
        self, samples: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata] = ()
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B] for each component.

        Raises:
            TransientError: the server did not answer in time, or could not.
            PermanentError: it refused the request, or its answer is not of the protocol.
        """
        size, pixels = self._config.batch_size, as_pixels(samples)
        columns: dict[str, list[float]] = {}
        for start in range(0, len(prompts), size):
            batch = slice(start, start + size)
            found = self._ask(pixels[batch], prompts[batch], metadata[batch])
            if start and found.keys() != columns.keys():
                raise PermanentError(
                    f"{self._config.url} answered {sorted(found)} for one batch and "
                    f"{sorted(columns)} for another"
                )
            for name, values in found.items():
                columns.setdefault(name, []).extend(values)
        return {name: torch.tensor(v, dtype=torch.float64) for name, v in columns.items()}

    def _ask(
        self, pixels: Pixels, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> dict[str, list[float]]:
        url = self._config.url
        body = encode_request(pixels, prompts, self._config.body, metadata)
        try:
            response = self._client.post(url, content=body)
        except httpx.TimeoutException as error:
            raise TransientError(f"{url} gave no answer in {self._config.timeout:g} s") from error
        except httpx.TransportError as error:
            raise TransientError(f"{url} cannot be reached: {error}") from error
        status = response.status_code
        if status != httpx.codes.OK:
            kind = TransientError if status in _PASSING or status >= 500 else PermanentError
            raise kind(f"{url} answered {status}: {' '.join(response.text.split())[:200]}")
        try:
            return decode_answer(response.content, len(prompts))
        except ValueError as error:
            raise PermanentError(f"{url} {_about(error)}") from error


def _about(error: ValueError) -> str:
    """Say what is wrong with an answer."""
    text = str(error)
    return text if text.startswith("answered") else f"answered what is not JSON: {text}"
