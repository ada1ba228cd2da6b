"""The module inside a wrapper: of torch.compile, DataParallel, FSDP, Lightning and others."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from torch import nn

ALWAYS = ("_orig_mod", "_fsdp_wrapped_module")  # of torch.compile, and of FullyShardedDataParallel
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module whose class and configuration describe a model: the one inside its wrappers.

    A wrapper has a module under ``module`` (DataParallel, DistributedDataParallel) or ``model`` (Lightning) and no
    parameters besides. The wrapper itself is what runs: use the module inside only to read names and settings.

    Args:
        model: any module.
    """
    inner = _inner(model)
    while inner is not None:
        model, inner = inner, _inner(inner)
    return model


def forward_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward, or of the model inside a wrapper that passes all arguments on."""
    parameters = inspect.signature(model.forward).parameters
    inner = _inner(model)
    if inner is None or any(p.kind not in VARIABLE for p in parameters.values()):
        return parameters
    return forward_parameters(inner)


def _inner(model: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper wraps; ``None`` if a module is no wrapper."""
    parts = dict(model._modules.items())
    for name in ALWAYS:
        if name in parts:
            return parts[name]
    if _describes_itself(model):
        return None
    found = parts.get("module")
    if found is not None and _has_all_parameters(found, model):
        return found
    found = parts.get("model")
    if found is not None and _has_all_parameters(found, model) and _describes_itself(unwrapped(found)):
        return found
    return None


def _describes_itself(model: nn.Module) -> bool:
    """Whether a model has the configuration of a HuggingFace model."""
    return hasattr(getattr(model, "config", None), "model_type")


def _has_all_parameters(inner: nn.Module, wrapper: nn.Module) -> bool:
    return sum(1 for _ in inner.parameters()) == sum(1 for _ in wrapper.parameters())
