"""Rank correlation of two maps."""

from __future__ import annotations

from .._utils.optional_imports import need
from .case import Floats


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's correlation, from -1 to 1; 0 where one of the maps is constant."""
    ranks = need("scipy.stats", "rank correlation", "evaluation").rankdata
    x, y = (ranks(v) - (len(v) + 1) / 2 for v in (a, b))
    size = float((x @ x) * (y @ y)) ** 0.5
    return float(x @ y) / size if size > 0 else 0.0
