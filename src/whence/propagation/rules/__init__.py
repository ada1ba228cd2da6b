"""Propagation rules: one short function per published equation.

:mod:`whence.propagation.rules.gradient` holds substitutions (same value, another derivative), after which relevance is
gradient times input. :mod:`whence.propagation.rules.relevance` holds rules that propagate relevance itself.
:mod:`whence.propagation.rules.linear` holds the rules of linear layers and convolutions, which both use.
"""
