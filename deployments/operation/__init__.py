"""What ``digen up`` starts on one machine, and how ``digen down`` ends exactly that."""
