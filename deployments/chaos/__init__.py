"""Chaos: runs of a config in which processes, links and disks fail, held against one in peace."""
