"""Commands that look at configs."""

import sys

from deployments.overrides import ConfigTokens, config_of


def show(*tokens: ConfigTokens) -> int:
    """Print every key with its meaning and value, as TOML that 'digen train' reads.

    Example: digen config show shapes --seed 1 > mine.toml

    Without CONFIG these are the defaults.
    """
    config = config_of(tokens)

    from digen_core.config.toml import as_toml

    sys.stdout.write(as_toml(config))
    return 0


def reference() -> int:
    """Print every key that there is, of every algorithm and reward, as a page in Markdown.

    Example: digen config reference > docs/configuration.md
    """
    from digen_core.config.reference_page import reference as page

    sys.stdout.write(page())
    return 0
