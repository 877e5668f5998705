"""Requests to a vision-language model behind any server that speaks OpenAI's chat completions.

``concurrency`` of them are under way at a time, and each is tried again by itself: a server under
load turns some away, which must not repeat the others.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from tenacity import AsyncRetrying, RetryCallState
from torch import Tensor

from digen_core.config.rewards.judge_template import PairTemplate, Template
from digen_core.config.rewards.judges import VlmReward
from digen_core.inputs.reading import listed, parse_json, shown
from digen_core.rewards.attempts import PermanentError, TransientError, after_attempts, attempts_of
from digen_core.rewards.judge.answers import asked_of
from digen_core.rewards.pixels import as_file, as_pixels
from digen_core.rewards.server import ANSWER_BYTES, NoAnswerError, RefusedError, Server

logger = logging.getLogger(__name__)

ANSWER_BYTES_PER_TOKEN: Final = 64
"""How much longer an answer may be for each token that it may have."""

MODELS_BYTES: Final = 2**20
"""How long a list of models may be."""

_UNKNOWN: Final = (400, 404)  # what servers answer that do not serve a model

Scores = Mapping[str, float]
Outcome = Scores | PermanentError | TransientError
Part = dict[str, Any]
T = TypeVar("T", bound=Template | PairTemplate)


class Asker:
    """Asks a model, and reads what it answers."""

    def __init__(
        self,
        config: VlmReward,
        template: T,
        read: Callable[[bytes, T], Scores],
        what: str,
    ) -> None:
        """Open no connection yet.

        Args:
            config: of the reward.
            template: which says what kind of answer is asked for.
            read: returns the numbers that an answer of that template holds; raises ValueError if it
                holds none.
            what: requests are about: "samples".

        Raises:
            UserError: the url cannot be used, or the token's environment variable is not set.
        """
        self._config, self._what = config, what
        self._read: Callable[[bytes], Scores] = lambda answer: read(answer, template)
        self._server = Server(config, {"Content-Type": "application/json"})
        self._base = config.url.rstrip("/")
        fixed = {"model": config.model, "temperature": 0, "seed": config.seed}
        self._options: dict[str, Any] = {**fixed, **asked_of(template, config.max_tokens)}

    def frames_of(self, sample: Tensor) -> Tensor:
        """Return the frames of a sample [F, 3, H, W] that are shown."""
        chosen = sample[:: self._config.frame_stride]
        if len(chosen) > self._config.max_frames:
            spread = np.linspace(0, len(chosen) - 1, self._config.max_frames).round().astype(int)
            chosen = chosen[spread]
        return chosen

    def images(self, frames: Tensor) -> list[Part]:
        """Return the parts of a message that show images [n, 3, H, W]."""
        return [
            {"type": "image_url", "image_url": {"url": self._address(frame)}}
            for frame in as_pixels(frames)
        ]

    def about(self, frames: Tensor, sources: Tensor | None, system: str, user: str) -> bytes:
        """Return a request about a sample [F, 3, H, W], its sources [n, 3, H, W] before it."""
        chosen = self.frames_of(frames)
        images = chosen if sources is None else torch.cat([sources, chosen])
        return self.body([*self.images(images), {"type": "text", "text": user}], system)

    def body(self, content: Sequence[Part], system: str) -> bytes:
        """Return a request: what the user shows and says, and what the system says before."""
        messages: list[Part] = [{"role": "user", "content": list(content)}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return json.dumps({**self._options, "messages": messages}).encode()

    def outcomes(self, bodies: Sequence[Callable[[], bytes]]) -> list[Outcome | None]:
        """Return what came of each request; None for those that were not made any more.

        Args:
            bodies: return requests; called in threads, as images take a while to be written.
        """
        return asyncio.run(self._outcomes(bodies))

    async def _outcomes(self, bodies: Sequence[Callable[[], bytes]]) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [None] * len(bodies)
        left, repeated = iter(range(len(bodies))), list[str]()
        slots = asyncio.Semaphore(self._config.concurrency)
        async with self._server.client(self._config.concurrency) as client:

            async def work() -> None:
                for index in left:
                    # Writing files of images takes a while: beside the requests, and before.
                    body = await asyncio.to_thread(bodies[index])
                    async with slots:
                        before = _num_scored(outcomes)
                        outcomes[index] = await self._outcome(client, body, repeated)
                    if self._is_over(outcomes[index], _num_scored(outcomes) - before):
                        for other in set(tasks) - {asyncio.current_task()}:
                            other.cancel()
                        return

            count = min(2 * self._config.concurrency, len(bodies))
            tasks = [asyncio.create_task(work()) for _ in range(count)]
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error
            await self._explain(client, outcomes)
        if repeated:
            logger.warning(
                "%d requests about %d %s were sent again; of the last one %s",
                len(repeated), len(bodies), self._what, repeated[-1],
            )  # fmt: skip
        return outcomes

    async def _explain(self, client: httpx.AsyncClient, outcomes: list[Outcome | None]) -> None:
        """Add to the first refusal what the server says that it serves."""
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, RefusedError) and outcome.status in _UNKNOWN:
                outcomes[index] = PermanentError(f"{outcome}{await self._hint(client)}")
                return

    def _is_over(self, outcome: Outcome | None, num_others: int) -> bool:
        """Say whether what is left need not be asked.

        That is so if one without an answer ends the run, and if the server is dead: it was silent
        in all attempts of one request, and answered no other meanwhile.

        Args:
            outcome: of a request.
            num_others: requests that were answered while this one was made.
        """
        if isinstance(outcome, Mapping):
            return False
        is_dead = isinstance(outcome, NoAnswerError) and not num_others
        return self._config.on_failure == "fail" or is_dead

    async def _outcome(
        self, client: httpx.AsyncClient, body: bytes, repeated: list[str]
    ) -> Outcome:
        """Return what a request is answered, or why it is not; note why it is repeated."""

        def note(state: RetryCallState) -> None:
            repeated.append(str(state.outcome and state.outcome.exception()))

        attempts = AsyncRetrying(**attempts_of(self._config, note))
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
            return self._read(answer)
        except ValueError as error:
            raise PermanentError(f"{url} {error}") from error

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
