"""Whence: from where did this prediction come?"""

from .errors import (
    InputError,
    MethodError,
    ModelError,
    NumericalError,
    TargetError,
    WhenceError,
    WhenceWarning,
)
from .explain import explain
from .explanation import Explanation
from .methods import Method, Reading, method, methods
from .methods.gradient_x_input import InputLevel
from .run import Rulebook, Run

__version__ = "0.1.0"
__all__ = [
    "Explanation",
    "InputError",
    "InputLevel",
    "Method",
    "MethodError",
    "ModelError",
    "NumericalError",
    "Reading",
    "Rulebook",
    "Run",
    "TargetError",
    "WhenceError",
    "WhenceWarning",
    "explain",
    "method",
    "methods",
]
