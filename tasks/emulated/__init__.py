"""What emulated devices work with; their bodies are in `tasks/emulation.py`."""
