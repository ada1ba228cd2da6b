"""What an explanation holds: scores, arithmetic, the way back to the input, files. It knows no model."""
