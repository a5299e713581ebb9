"""A simulator of text models with known timing, which logs the ground truth; serve/openai has its endpoints."""
