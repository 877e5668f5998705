"""Rewards that look at whole videos: what moves in them, flickers, or stays the same."""
