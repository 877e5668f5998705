"""Prompts: files and tables that hold them, and how iterations draw from them."""
