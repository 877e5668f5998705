"""A vision-language model as a judge, behind any server that speaks OpenAI's chat completions.

Each sample is one request. ``concurrency`` of them are under way at a time, and each is tried again
by itself: a server under load turns some away, which must not repeat the others.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from tenacity import AsyncRetrying, RetryCallState
from torch import Tensor

from digen_core.config.judge_template import load_template
from digen_core.config.rewards import JudgeConfig
from digen_core.data.prompts import Metadata
from digen_core.errors import UserError
from digen_core.inputs.reading import listed, parse_json, shown
from digen_core.rewards.judge.answers import asked_of, scores_in
from digen_core.rewards.pixels import as_file, as_pixels
from digen_core.rewards.scoring import (
    PartialError,
    PermanentError,
    TransientError,
    after_attempts,
    attempts_of,
)
from digen_core.rewards.server import ANSWER_BYTES, NoAnswerError, RefusedError, Server

logger = logging.getLogger(__name__)

ANSWER_BYTES_PER_TOKEN: Final = 64
"""How much longer an answer may be for each token that it may have."""

MODELS_BYTES: Final = 2**20
"""How long a list of models may be."""

_UNKNOWN: Final = (400, 404)  # what servers answer that do not serve a model

Scores = Mapping[str, float]
Outcome = Scores | PermanentError | TransientError


class Judge:
    """Scores samples by asking a model about each."""

    def __init__(self, config: JudgeConfig, device: torch.device) -> None:
        """Read the template; open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            UserError: the template or the url cannot be used, or the token's environment variable
                is not set.
        """
        self._config, self._template = config, load_template(config.template)
        self._server = Server(config, {"Content-Type": "application/json"})
        self._base = config.url.rstrip("/")
        self._options = {
            "model": config.model,
            "temperature": 0,
            "seed": config.seed,
            **asked_of(self._template, config.max_tokens),
        }

    def __call__(
        self,
        samples: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata] = (),
        sources: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B] for each component.

        Args:
            samples: to judge.
            prompts: of each.
            metadata: of each.
            sources: images [B, 3, H, W] that they are edits of, shown first if the template says
                so.

        Raises:
            PartialError: some have no score, or one has none and that ends the run.
            UserError: the template names a column that the metadata have not, or there are no
                sources for it to show.
        """
        videos = samples if samples.ndim == 5 else samples[:, None]
        sources = self._shown(sources)
        metadata = metadata or [{}] * len(prompts)
        texts = [self._template.texts(*each) for each in zip(prompts, metadata, strict=True)]
        outcomes = asyncio.run(self._outcomes(videos, sources, texts))
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        scored = [outcome for outcome in outcomes if isinstance(outcome, Mapping)]
        if errors or len(scored) < len(outcomes):
            scores = [own["score"] if isinstance(own, Mapping) else np.nan for own in outcomes]
            raise PartialError(str(errors[0]), torch.tensor(scores, dtype=torch.float64)) from (
                errors[0]
            )
        return {
            name: torch.tensor([own[name] for own in scored], dtype=torch.float64)
            for name in scored[0]
        }

    def _shown(self, sources: Tensor | None) -> Tensor | None:
        """Return the sources if the template shows them."""
        if not self._template.source:
            return None
        if sources is None:
            raise UserError(
                f"the judge's template {self._config.template} shows source images, but the "
                "prompts come without"
            )
        return sources

    async def _outcomes(
        self, videos: Tensor, sources: Tensor | None, texts: Sequence[tuple[str, str]]
    ) -> list[Outcome | None]:
        """Return what came of each sample; None for those that were not asked about any more.

        Args:
            videos: [B, F, 3, H, W], in [0, 1].
            sources: images to show before them, [B, 3, H, W]; None: none.
            texts: of the system and the user, for each of B samples.
        """
        outcomes: list[Outcome | None] = [None] * len(texts)
        left, repeated = iter(range(len(texts))), list[str]()
        slots = asyncio.Semaphore(self._config.concurrency)
        async with self._server.client(self._config.concurrency) as client:

            async def work() -> None:
                for index in left:
                    # Writing files of images takes a while: beside the requests, and before.
                    shown = videos[index], None if sources is None else sources[index]
                    body = await asyncio.to_thread(self._body, *shown, *texts[index])
                    async with slots:
                        before = _num_scored(outcomes)
                        outcomes[index] = await self._outcome(client, body, repeated)
                    if self._is_over(outcomes[index], _num_scored(outcomes) - before):
                        for other in set(tasks) - {asyncio.current_task()}:
                            other.cancel()
                        return

            count = min(2 * self._config.concurrency, len(texts))
            tasks = [asyncio.create_task(work()) for _ in range(count)]
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error
            await self._explain(client, outcomes)
        if repeated:
            logger.warning(
                "%d requests about %d samples were sent again; of the last one %s",
                len(repeated), len(texts), repeated[-1],
            )  # fmt: skip
        return outcomes

    async def _explain(self, client: httpx.AsyncClient, outcomes: list[Outcome | None]) -> None:
        """Add to the first refusal what the server says that it serves."""
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, RefusedError) and outcome.status in _UNKNOWN:
                outcomes[index] = PermanentError(f"{outcome}{await self._hint(client)}")
                return

    def _is_over(self, outcome: Outcome | None, num_others: int) -> bool:
        """Say whether the samples that are left need not be asked about.

        That is so if one without a score ends the run, and if the server is dead: it was silent in
        all attempts of one sample, and scored no other meanwhile.

        Args:
            outcome: of a sample.
            num_others: samples that were scored while this one was asked about.
        """
        if isinstance(outcome, Mapping):
            return False
        is_dead = isinstance(outcome, NoAnswerError) and not num_others
        return self._config.on_failure == "fail" or is_dead

    async def _outcome(
        self, client: httpx.AsyncClient, body: bytes, repeated: list[str]
    ) -> Outcome:
        """Return a sample's scores, or why it has none; note why requests are repeated."""

        def note(state: RetryCallState) -> None:
            repeated.append(str(state.outcome and state.outcome.exception()))

        attempts = AsyncRetrying(**attempts_of(self._config) | {"before_sleep": note})
        try:
            return await attempts(self._ask, client, body)
        except PermanentError as error:
            return error
        except TransientError as error:
            after = after_attempts(attempts.statistics["attempt_number"], self._config)
            return type(error)(f"{error}{after}")

    async def _ask(self, client: httpx.AsyncClient, body: bytes) -> Scores:
        url = f"{self._base}/chat/completions"
        limit = ANSWER_BYTES + ANSWER_BYTES_PER_TOKEN * self._options["max_tokens"]
        answer = await self._server.ask(client, url, body, limit)
        try:
            return scores_in(answer, self._template)
        except ValueError as error:
            raise PermanentError(f"{url} {error}") from error

    def _body(self, frames: Tensor, source: Tensor | None, system: str, user: str) -> bytes:
        """Return a request about a sample [F, 3, H, W], and about its source [3, H, W] before."""
        config = self._config
        chosen = frames[:: config.frame_stride]
        if len(chosen) > config.max_frames:
            spread = np.linspace(0, len(chosen) - 1, config.max_frames).round().astype(int)
            chosen = chosen[spread]
        images = chosen if source is None else torch.cat([source[None], chosen])
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": self._address(frame)}}
            for frame in as_pixels(images)
        ]
        content.append({"type": "text", "text": user})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return json.dumps({**self._options, "messages": messages}).encode()

    def _address(self, frame: NDArray[np.uint8]) -> str:
        """Return an image as a data URL."""
        kind = self._config.image_format
        text = base64.b64encode(as_file(frame, kind)).decode("ascii")
        return f"data:image/{kind};base64,{text}"

    async def _hint(self, client: httpx.AsyncClient) -> str:
        """Say what may be wrong with url or model, by what the server says that it serves."""
        try:
            answer = await self._server.ask(client, f"{self._base}/models", None, MODELS_BYTES)
            served = [model["id"] for model in parse_json(answer.decode())["data"]]
        except (TransientError, PermanentError, ValueError, LookupError, TypeError):
            return (
                f"; {self._base}/models does not list models either: set the reward's url to the "
                "base of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1"
            )
        if self._config.model in served:
            return ""
        names = listed(map(shown, served)) or "nothing"
        return f"; it serves {names}, not {self._config.model!r}: correct the reward's model"


def _num_scored(outcomes: Sequence[Outcome | None]) -> int:
    return sum(isinstance(outcome, Mapping) for outcome in outcomes)
