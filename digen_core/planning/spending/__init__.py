"""What plans spend, and the devices that are worth what they take."""

from typing import Literal

Spent = Literal["money", "energy"]
"""What devices take beside time."""

Objective = Literal["seconds", Spent]
"""Of what the best plan takes the least."""
