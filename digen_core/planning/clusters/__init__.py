"""Cluster files: which devices there are, what they cost, and how they are started."""
