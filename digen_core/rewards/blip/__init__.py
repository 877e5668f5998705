"""ImageReward, and the BLIP model that it sees images and prompts with."""
