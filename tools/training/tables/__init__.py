"""The small models whose explanations the tables measure: texts, molecules and digits.

Run from the root of the repository: `python -m tools.training.tables.train`.
"""
