"""DPG-Bench: the questions that come with a prompt, what their answers are worth, and its table."""
