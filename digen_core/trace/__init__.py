"""Traces of a schedule: spans on disk, idle gaps and their causes, pictures, metrics."""
