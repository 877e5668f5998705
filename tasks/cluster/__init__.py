"""The Dask cluster of a run: its processes, who may reach them, and calls that always end."""
