"""Pre-flight checks: what fails before anything starts, each in one line."""
