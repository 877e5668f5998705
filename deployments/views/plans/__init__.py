"""Plans for a cluster: the best ones, what a device more would bring, and how both are shown."""
