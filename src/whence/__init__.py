"""Whence: from where did this prediction come?"""

from .bias_probe.probe import Probe, probe
from .counterfactuals import Counterfactual
from .counterfactuals.counterfactual import counterfactual
from .errors import (
    EngineError,
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
from .evaluation import Trial, trial
from .evaluation.evaluate import evaluate
from .evaluation.measure import list_measures
from .evaluation.model_check import Check, check
from .explainer.compile import compile
from .explainer.explain import explain
from .explainer.explainer import Explainer
from .explainer.generation import Generation
from .explainer.long_text import windows
from .explanations.explanation import Explanation, Explanations, load
from .explanations.score_table import Table
from .jobs import Job, Summary, run, summarize
from .localisation import Coco, Region
from .localisation.locate import locate
from .localisation.segment import segment
from .methods.base import Method, Reading
from .methods.gradient_x_input import InputLevel
from .methods.registry import list_methods, method
from .propagation.rulebook import Rulebook
from .runs.head_ablation import without
from .runs.run import Run
from .targets.named_scalars import answer, box, query, similarity, span
from .targets.specs import At, Contrast, Every, contrast, every

__version__ = "0.1.0"
__all__ = [
    "At",
    "Check",
    "Coco",
    "Contrast",
    "Counterfactual",
    "EngineError",
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
    "compile",
    "contrast",
    "counterfactual",
    "evaluate",
    "every",
    "explain",
    "list_measures",
    "list_methods",
    "load",
    "locate",
    "method",
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
