"""What work costs, and which schedule is the fastest for a cluster and a recipe."""
