"""Equivalent spellings of one small pre-norm Transformer, each compared with the usual spelling for every method.

``make fuzz-spellings``, or ``python -m tools.spellings --cases 5000 --seed 0``. See docs/fuzzing.md.
"""
