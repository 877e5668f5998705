"""A BLIP that answers questions about images: how probable yes is beside no.

The probability is p(yes) / (p(yes) + p(no)) of the first word of the answer, as in T2I-CompBench
(https://arxiv.org/abs/2307.06350).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from digen_core.config.rewards.verifiers import BlipReward
from digen_core.errors import ConfigError
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.rewards.pixels import as_pixels

MAX_TOKENS: Final = 35
_ANSWERS: Final = ("yes", "no")
Pair = tuple[tuple[int, int], list[int]]
"""Row of an image and place of a question, and its tokens."""
T = TypeVar("T")


class BlipAnswers:
    """Answers questions about images."""

    def __init__(self, config: BlipReward, device: torch.device) -> None:
        """Load model and processor.

        Raises:
            ConfigError: one of them cannot be loaded, or knows neither yes nor no.
        """
        from transformers import BlipForQuestionAnswering, BlipProcessor

        self._device, self._batch_size = device, config.batch_size
        size = config.image_size
        self._sizes = {} if size is None else {"size": {"height": size, "width": size}}
        try:
            model = BlipForQuestionAnswering.from_pretrained(
                config.path, revision=config.revision, dtype=TORCH_DTYPES[config.dtype]
            )
            processor: Any = BlipProcessor.from_pretrained(config.path, revision=config.revision)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"the BLIP model {config.path} cannot be loaded: {reason}") from error
        self._model: Any = model.to(device).eval().requires_grad_(False)
        self._images, self._tokenizer = processor.image_processor, processor.tokenizer
        text = self._model.config.text_config
        # The two tokens that BLIP has beside BERT's: what answers and what questions begin with.
        self._begins_answer, self._begins_question = text.bos_token_id, text.bos_token_id + 1
        self._answers = self._tokenizer.convert_tokens_to_ids(list(_ANSWERS))
        is_without = self._tokenizer.unk_token_id in self._answers
        if is_without or self._begins_question >= text.vocab_size:
            raise ConfigError(
                f"the BLIP model {config.path} is none that answers questions with yes and no: "
                f"of its {text.vocab_size} tokens yes and no are {self._answers}, and "
                f"bos_token_id is {text.bos_token_id}; use Salesforce/blip-vqa-base or one like it"
            )

    def probabilities(
        self, images: Tensor, questions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return how probable yes is beside no, of each question about each image.

        Args:
            images: [B, 3, H, W].
            questions: [B][n], in the words of BLIP's training.
        """
        tokens = [[self._read(own) for own in several] for several in questions]
        found = [[0.0] * len(several) for several in questions]
        pixels = as_pixels(images)
        for places in self._batches(range(len(images))):
            seen = self._see([pixels[place] for place in places])
            pairs = [
                ((row, number), own)
                for row, place in enumerate(places)
                for number, own in enumerate(tokens[place])
            ]
            for some in self._equally_long(pairs):
                rows = [row for (row, _), _ in some]
                answers = self._ask(seen[rows], [question for _, question in some])
                for ((row, number), _), answer in zip(some, answers.tolist(), strict=True):
                    found[places[row]][number] = answer
        return found

    def _read(self, question: str) -> list[int]:
        """Return the tokens of a question."""
        ids: list[int] = self._tokenizer(question, truncation=True, max_length=MAX_TOKENS).input_ids
        return [self._begins_question, *ids[1:]]

    def _equally_long(self, pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        """Yield batches of questions without padding, which the class of transformers looks at."""
        by_length: dict[int, list[Pair]] = {}
        for pair in pairs:
            by_length.setdefault(len(pair[1]), []).append(pair)
        for own in by_length.values():
            yield from self._batches(own)

    def _batches(self, values: Sequence[T]) -> Iterator[Sequence[T]]:
        for start in range(0, len(values), self._batch_size):
            yield values[start : start + self._batch_size]

    @torch.no_grad()
    def _see(self, pixels: list[Any]) -> Tensor:
        """Return what the model makes of images [H, W, 3]: [n, tokens, width]."""
        inputs = self._images(
            images=pixels, return_tensors="pt", input_data_format="channels_last", **self._sizes
        )
        values = inputs["pixel_values"].to(self._device, self._model.dtype)
        seen = self._model.vision_model(values, interpolate_pos_encoding=True)
        states: Tensor = seen.last_hidden_state
        return states

    @torch.no_grad()
    def _ask(self, seen: Tensor, questions: Sequence[Sequence[int]]) -> Tensor:
        """Return how probable yes is beside no, [n], about images of which that was seen.

        Args:
            seen: [n, tokens, width].
            questions: [n][length].
        """
        ids = torch.tensor(questions, device=self._device)
        states = self._model.text_encoder(ids, encoder_hidden_states=seen).last_hidden_state
        start = torch.full_like(ids[:, :1], self._begins_answer)
        answers = self._model.text_decoder(start, encoder_hidden_states=states).logits[:, 0]
        yes: Tensor = answers[:, self._answers].double().softmax(dim=-1)[:, 0]
        return yes
