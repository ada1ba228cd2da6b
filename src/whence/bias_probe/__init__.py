"""Bias probing: swap names and terms in templates, and measure the change of predictions and relevance."""
