"""The worker: what runs in a worker's process beside and below the task bodies."""
