"""Explanations as figures (matplotlib)."""
