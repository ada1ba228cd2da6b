"""Rules: one short function per published equation.

:mod:`whence.propagation.rules.gradient` holds substitutions (same value, another derivative), after which relevance is
gradient times input; :mod:`whence.propagation.rules.relevance` holds rules that carry relevance itself, and
:mod:`whence.propagation.rules.linear` those for linear layers and convolutions, which serve both.
"""
