"""Inputs: files, addresses and text that users or others wrote, bounded and made fit to show."""
