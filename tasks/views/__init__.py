"""Views of a run in Prefect, and the words and pictures that all views share."""
