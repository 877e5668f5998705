"""The runtime of a run: one conductor, one controller, and the tasks that they have under way."""

from typing import Any, Final

ONCE: Final[dict[str, Any]] = {"retries": 0, "persist_result": False}
"""Options of a flow of a run. What the user has set for other flows would begin a failed run anew,
rather than resume it, and take what was done before for done where the workers are others."""
