"""Random tiny Transformers from a grammar of blocks, and what must hold of every explanation of them.

``make fuzz``, or ``python -m tools.fuzz --cases 5000 --seed 0``. See docs/fuzzing.md.
"""
