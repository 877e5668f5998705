"""The runtime of a run: one conductor, one controller, and the tasks that they have under way."""
