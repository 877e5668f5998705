"""Errors that a user can mend: one line says what is wrong and what to do; no traceback."""


class UserError(ValueError):
    """A command cannot do what it was asked for: the message says what is wrong and what to do."""


class ConfigError(UserError):
    """A config, or something that it names, cannot be used; the message is one line."""
