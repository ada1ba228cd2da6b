"""A model as it is run: in evaluation mode, loaded, as it was written, and afterwards exactly as it was found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from .._utils.offloading import loaded
from .tensor_info import forget, info_of
from .tensor_parallel import gathered


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[dict[int, str]]:
    """Evaluation mode, weights loaded, compiled submodules as they were written; all undone when the block ends.

    Yields:
        The name of each parameter, by ``id``.
    """
    with loaded(model), gathered(model), _evaluating(model) as names:
        yield names


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[dict[int, str]]:
    """Evaluation mode, compiled submodules as they were written; the names of parameters."""
    modules = list(model.named_modules())
    named = ((id(p), f"{at}.{name}" if at else name) for at, m in modules for name, p in m._parameters.items())
    flags = [m for _, m in modules if getattr(m, "training", False)]  # a frozen script has no flag
    compiled = any("_orig_mod" in m._modules or getattr(m, "_compiled_call_impl", None) for _, m in modules)
    try:
        for m in flags:
            m.training = False
        with torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext():
            yield dict(reversed(list(named)))  # of a shared parameter, the first name
    finally:
        for m in flags:
            m.training = True
        for _, m in modules:
            for buffer in m._buffers.values():
                if info_of(buffer).node is not None:  # the model wrote to it in its forward: free it from the trace
                    buffer.detach_()
                    forget(buffer)
