"""Texts and numbers, fit to be shown: a terminal takes some characters of others as orders."""

import re
from typing import Final

_ORDERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters save for tab and newline, and those that turn the direction of writing."""


def printable(text: str) -> str:
    """Return a text with a replacement character for each that is an order to what shows it."""
    return _ORDERS.sub("\N{REPLACEMENT CHARACTER}", text)


def short(value: float, digits: int = 3) -> str:
    """Return a number of 0 or more with so many digits, or all there are before the point."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def number_of(number: int, noun: str, plural: str = "") -> str:
    """Return how many there are of what, in words: 1 iteration, 2 iterations.

    Args:
        number: of them.
        noun: of one.
        plural: of several, if it is not the noun with an s.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
