"""Embedded worlds: procedurally rendered text-to-image domains that a run can use offline."""
