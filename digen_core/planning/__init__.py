"""Planning: the costs of work, and the fastest schedule for a cluster and a recipe."""
