"""HPS v3 and VideoReward: Qwen2-VLs with a head that reads numbers at marks in the text."""
