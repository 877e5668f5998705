"""Places that metrics go to beside MLflow, a file each; who is not asked for is not imported."""
