"""Targets: which scalar of a model's output is explained."""
