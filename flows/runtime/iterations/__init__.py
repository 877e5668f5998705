"""Iterations: a flow run for each in a thread of its own, and the record that it ends with."""
