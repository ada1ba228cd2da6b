"""All that an explanation must leave as it was."""

from __future__ import annotations

import torch
from torch import nn


def snapshot(model: nn.Module) -> dict:
    """All that could be changed: weights, gradients, flags, hooks, attributes, class attributes, global hooks."""
    scope = vars(torch.nn.modules.module)
    state = {"global": {n: len(v) for n, v in scope.items() if n.startswith("_global") and isinstance(v, dict)}}
    for name, m in model.named_modules():
        state[name, "flags"] = (m.training, type(m), tuple(sorted(m.__dict__)), tuple(sorted(vars(type(m)))))
        state[name, "hooks"] = tuple(len(v) for k, v in sorted(m.__dict__.items()) if k.endswith("_hooks"))
        state[name, "forward"] = m.forward.__func__
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        state[name, "value"] = (
            id(p),
            p._version,
            p.requires_grad,
            p.grad,
            tuple(sorted(p.__dict__)),
            hash(p.detach().numpy().tobytes()),
        )
    return state
