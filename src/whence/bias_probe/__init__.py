"""Bias probing: names and terms swapped in templates, and what changes in the explanations."""
