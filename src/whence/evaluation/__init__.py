"""How far an explanation can be trusted: the papers' evaluations, on real data.

A *measure* turns an explanation of one sample into a vector; a dataset's value is a function of their mean, with an
interval by bootstrap and paired differences between methods. Most measures remove features (tokens, patches, pixels) in
the order of their scores and watch the model; what stands in for a removed feature is the *baseline*.
"""

from .evaluate import evaluate
from .measure import Measure, measure, measures
from .method_spec import Contender
from .random_order_test import Trial, trial
from .results import Cell, Difference, Evaluation
from .store import load

__all__ = [
    "Cell",
    "Contender",
    "Difference",
    "Evaluation",
    "Measure",
    "Trial",
    "evaluate",
    "load",
    "measure",
    "measures",
    "trial",
]
