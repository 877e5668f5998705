"""Errors that end a command."""


class RunStoppedError(RuntimeError):
    """Somebody stopped a run; the message is one line: who, and what is kept."""


class RunFailedError(RuntimeError):
    """A run that had started failed; the message is one line for the user."""
