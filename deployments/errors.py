"""Errors that end a command."""


class RunFailedError(RuntimeError):
    """A run that had started failed; the message is one line for the user."""
