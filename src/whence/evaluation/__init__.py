"""Evaluation of explanations: the published measures, on real data.

A *measure* turns an explanation of one sample into a vector; a dataset's value is a function of their mean, with a
bootstrap interval and paired differences between methods. Most measures remove features (tokens, patches, pixels) in
the order of their scores and follow the prediction; the *baseline* is what removed features are replaced with.
"""

from .measure import Measure
from .method_spec import MethodSpec
from .random_order_test import Trial, trial
from .results import Cell, Difference, Evaluation
from .store import load

__all__ = [
    "Cell",
    "Difference",
    "Evaluation",
    "Measure",
    "MethodSpec",
    "Trial",
    "load",
    "trial",
]
