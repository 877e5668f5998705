"""The gang of a worker's process: how one member leads the others, or follows."""
