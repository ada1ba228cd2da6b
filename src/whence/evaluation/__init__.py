"""How far an explanation can be trusted: the papers' evaluations, on real data.

A *measure* turns an explanation of one sample into a vector; a dataset's value is a function of their mean, with an
interval by bootstrap and paired differences between methods. Most measures remove features (tokens, patches, pixels) in
the order of their scores and watch the model; what stands in for a removed feature is the *baseline*.
"""

from .contender import Contender
from .evaluate import evaluate
from .measure import Measure, measure, measures
from .results import Cell, Difference, Evaluation
from .shards import load
from .trial import Trial, trial

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
