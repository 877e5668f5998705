"""Rewards that see images and prompts with BLIP models: ImageReward, and answers to questions."""
