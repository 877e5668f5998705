"""The lean task runner: Prefect tasks on Dask for a few milliseconds each."""
