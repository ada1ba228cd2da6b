"""Where a NaN or an infinity first appears: the model is run once more, every operation looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..tracing.op_call import tensors_in
from ..tracing.operations import PASSIVE, operation


class _Watch(TorchFunctionMode):
    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.near = ""
        self.found = ""
        self.weight = ""  # what the operation reads that is not finite itself
        self.emptied = ""  # the last operation that made minus infinity, which is no fault in a mask

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = operation(func).name
        if self.found or name in PASSIVE:
            return out
        for a in args:
            self.near = self.names.get(id(a), self.near) if isinstance(a, Tensor) else self.near
        if isinstance(out, Tensor) and out.is_floating_point():
            place = self.near.rsplit(".", 1)[0]
            here = f"'{name}'" + (f" in or after '{place}'" if place else "")
            if _bad(out):
                self.found = here
                read = (t for t in tensors_in(*args, *(kwargs or {}).values()) if id(t) in self.names and _bad(t))
                self.weight = next((self.names[id(t)] for t in read), "")
            elif _empty(out) and not any(map(_empty, args)):
                self.emptied = here
        return out


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool((torch.isnan(tensor) | (tensor == torch.inf)).any())


def _empty(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and bool((value == -torch.inf).any())


def first_bad_value(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], otherwise: str) -> str:
    """Return a sentence naming the weight or the operation where a NaN or an infinity first appears.

    Args:
        model: the model.
        args, kwargs: its arguments.
        otherwise: what to say if none is seen in the forward pass.
    """
    watch = _Watch({id(t): name for name, t in [*model.named_buffers(), *model.named_parameters()]})
    with torch.no_grad(), watch:
        outputs = model(*args, **kwargs)
    if watch.weight:
        return f"the weight '{watch.weight}' holds a NaN or an infinity. Load the weights again, or repair them."
    if watch.found:
        return f"a NaN or an infinity first appears in the output of {watch.found}. Try float32, or look at that layer."
    if watch.emptied and any(map(_empty, tensors_in(outputs))):
        return f"it holds minus infinity, last made by {watch.emptied}. Explain what stands before it."
    return f"no NaN or infinity was seen in the forward pass. {otherwise}"
