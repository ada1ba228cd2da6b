"""Whence: from where did this prediction come?"""

from .errors import (
    InputError,
    MethodError,
    ModelError,
    NumericalError,
    TargetError,
    WhenceError,
)
from .explain import explain
from .explanation import Explanation
from .methods import Method, method, methods

__version__ = "0.1.0"
__all__ = [
    "Explanation",
    "InputError",
    "Method",
    "MethodError",
    "ModelError",
    "NumericalError",
    "TargetError",
    "WhenceError",
    "explain",
    "method",
    "methods",
]
