"""Chats: prompts as the first message to a language model that embeds them."""

from collections.abc import Sequence
from typing import Any


def as_chats(tokenizer: Any, prompts: Sequence[str], *, thinking: bool) -> list[str]:
    """Return each prompt in the tokenizer's template, up to where the answer would begin.

    Args:
        tokenizer: with a chat template.
        prompts: to be embedded.
        thinking: whether the model may think first: else the template ends with empty thoughts.
    """
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        for prompt in prompts
    ]
