"""The services of ``digen up`` on one machine, and how ``digen down`` ends exactly those."""
