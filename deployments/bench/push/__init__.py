"""digen bench push: versions between two workers of this machine, whole and as deltas."""
