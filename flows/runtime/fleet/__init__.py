"""The fleet: workers that load, wait, are watched, are lost and join while a run works."""
