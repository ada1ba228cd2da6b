"""Whence: from where did this prediction come?"""

from .check import Check, check
from .errors import (
    FileError,
    InputError,
    MethodError,
    MissingError,
    ModelError,
    NumericalError,
    TargetError,
    WhenceError,
    WhenceWarning,
    WriteError,
)
from .evaluation import evaluate
from .explain import explain
from .explainer import Explainer
from .explanation import Explanation, Explanations, load
from .jobs import Job, Summary, run, summarize
from .methods import Method, Reading, method, methods
from .methods.gradient_x_input import InputLevel
from .run import Rulebook, Run
from .target import At, Contrast, Every, contrast, every

__version__ = "0.1.0"
__all__ = [
    "At",
    "Check",
    "Contrast",
    "Every",
    "Explainer",
    "Explanation",
    "Explanations",
    "FileError",
    "InputError",
    "InputLevel",
    "Job",
    "Method",
    "MethodError",
    "MissingError",
    "ModelError",
    "NumericalError",
    "Reading",
    "Rulebook",
    "Run",
    "Summary",
    "TargetError",
    "WhenceError",
    "WhenceWarning",
    "WriteError",
    "check",
    "contrast",
    "evaluate",
    "every",
    "explain",
    "load",
    "method",
    "methods",
    "run",
    "summarize",
]
