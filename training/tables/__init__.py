"""The small models whose explanations the tables measure: texts, molecules and digits.

Run from the directory `training`: `python -m tables.train`.
"""
