"""Decisions: what runs where and when. No clock, no I/O, no torch."""
