"""What would have to be otherwise for the model to say something else: the smallest change that flips a prediction.

Found from the order that relevance gives, made smaller by search, and always checked by the model itself.
"""

from .counterfactual import counterfactual
from .edits import Change
from .result import Answer, Counterfactual, save

__all__ = ["Answer", "Change", "Counterfactual", "counterfactual", "save"]
