"""Whence: from where did this prediction come?"""

from .check import Check, check
from .counterfactual import Counterfactual, counterfactual
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
from .evaluation import Trial, evaluate, trial
from .explain import explain
from .explainer import Explainer
from .explanation import Explanation, Explanations, load
from .generation import Generation
from .jobs import Job, Summary, run, summarize
from .localisation import Coco, Region, locate, segment
from .methods import Method, Reading, method, methods
from .methods.gradient_x_input import InputLevel
from .probe import Probe, probe
from .run import Rulebook, Run
from .scalars import answer, box, query, similarity, span
from .switch import without
from .table import Table
from .target import At, Contrast, Every, contrast, every
from .windows import windows

__version__ = "0.1.0"
__all__ = [
    "At",
    "Check",
    "Coco",
    "Contrast",
    "Counterfactual",
    "Every",
    "Explainer",
    "Explanation",
    "Explanations",
    "FileError",
    "Generation",
    "InputError",
    "InputLevel",
    "Job",
    "Method",
    "MethodError",
    "MissingError",
    "ModelError",
    "NumericalError",
    "Probe",
    "Reading",
    "Region",
    "Rulebook",
    "Run",
    "Summary",
    "Table",
    "TargetError",
    "Trial",
    "WhenceError",
    "WhenceWarning",
    "WriteError",
    "answer",
    "box",
    "check",
    "contrast",
    "counterfactual",
    "evaluate",
    "every",
    "explain",
    "load",
    "locate",
    "method",
    "methods",
    "probe",
    "query",
    "run",
    "segment",
    "similarity",
    "span",
    "summarize",
    "trial",
    "windows",
    "without",
]
