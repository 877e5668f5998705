"""Generation: denoising steps, decoding, scoring."""
