"""The way in to the console command: while it imports what it needs, Ctrl-C ends it at once."""

import signal


def main() -> None:
    """Entry point of the console command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback, until it has its own
    from deployments.cli import main as digen

    digen()
