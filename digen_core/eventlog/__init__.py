"""Event log: what a run's controller heard and said, kept, written, replayed and explained."""
