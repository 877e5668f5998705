"""Configs: one file for each table of the TOML file, and how configs are read and written."""
