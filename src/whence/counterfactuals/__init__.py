"""Counterfactuals: the smallest change of an input that flips a prediction.

The search starts in the order of relevance, shrinks the set of changes, and checks every result with a forward pass.
"""

from .edits import Change
from .result import Counterfactual, Prediction, save

__all__ = ["Change", "Counterfactual", "Prediction", "save"]
