"""``whence.compile``: explanations of tensors that are captured on their first use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..methods.registry import create
from ..runs.model_inputs import Inputs
from ..targets.specs import Target
from .captured import Captures
from .explain import explain_request
from .request import Request, original_of


class CompiledExplain:
    """A function that explains inputs of one model by one method; see :func:`compile`.

    Attributes:
        captures: what was captured, and why some inputs were not.
    """

    def __init__(self, captures: Captures) -> None:
        self.captures = captures

    def __call__(self, inputs: Inputs, target: Target = None) -> Any:
        """Explain inputs; arguments and result as of :func:`whence.explain`."""
        return explain_request(self.captures, inputs, target)


def compile(
    model: nn.Module, method: str = "conservative-lrp", *, backend: str | None = None, **options: Any
) -> CompiledExplain:
    """Return a function that explains predictions faster after the first use of an input shape.

    The first explanation of each signature (shapes and types of the inputs, kind of target) is captured. Later ones
    replay the captured tensor operations, with the same result: bit for bit on a CPU, except that sums may be rounded
    in another order where inputs have zero gradients at different positions (a text encoder that is read at its last
    token). Whatever a capture depends on is compared before it is used: the model's parameters, buffers, attributes and
    hooks, and every value that the model reads into Python. If something differs, the input is explained as by
    :func:`whence.explain`, and captured anew.

    Args:
        model: any ``nn.Module``.
        method: a name from :func:`whence.list_methods`.
        backend: a backend of ``torch.compile`` that generates the kernels of replays: ``"inductor"`` (needs a C++
            compiler, or a GPU) or ``"cudagraphs"``. The scores are then the same up to rounding, and the first
            explanation of a signature takes seconds to a minute longer.
        options: the method's options.

    Example:
        >>> explain = whence.compile(model, "attn-lrp")
        >>> e = explain({"input_ids": ids, "attention_mask": mask}, target=1)
    """
    create(method, options)
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is {type(model).__name__}; Whence explains torch.nn.Module objects.")
    backends = torch.compiler.list_backends(exclude_tags=())
    if backend is not None and backend not in backends:
        raise InputError(f"torch.compile has no backend '{backend}'. It has: {', '.join(sorted(backends))}.")
    captures = Captures(Request(original_of(model), method, options), eager=True, exact=False, backend=backend)
    return CompiledExplain(captures)
