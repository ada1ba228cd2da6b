"""A model run again with other values in place of some tensors, where only the target and its gradients are asked.

Once the values are in their places there is nothing left to trace: the model goes on as it is. (Where a rulebook or the
ledger needs the whole forward pass, :meth:`whence.runs.run.Run.retrace` traces it to its end.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..targets.seed import Seed
from ..tracing import operations as ops
from ..tracing.autograd_graph import sent_back
from ..tracing.axes import guess
from ..tracing.op_call import Call, map_tensors, tensors_in
from ..tracing.quantised import is_quantised
from ..tracing.tensor_info import attach, node_of
from ..tracing.tracer import Trace


class ReplacingTrace(Trace):
    """A trace that ends once the last value is replaced; from there on only linear layers are watched.

    Args:
        batch: the number of samples.
        names: the name of each parameter, by ``id``.
        replaced: values to put in place of tensors, by the ``seq`` of their nodes in an earlier trace.
        learned: parameters (by ``id``) that are tokens of the model's own.
        gradients: whether gradients at the values will be asked for; if not, no graph is made from there on.
    """

    def __init__(
        self,
        batch: int,
        names: Mapping[int, str],
        replaced: Mapping[int, Tensor],
        learned: frozenset[int],
        gradients: bool,
    ) -> None:
        super().__init__({}, batch, names=names, replaced=replaced, learned=learned)
        self.gradients = gradients

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op = ops.operation(func)
        if not self.gradients and not self.replaced:
            if op.name == "linear":  # quantised layers compute what they did when they were traced
                args, kwargs = map_tensors((args, kwargs), self._read)
            with torch.no_grad():
                return func(*args, **kwargs)
        if self.replaced or op.inplace or not torch.is_grad_enabled():  # it may write to what is the model's own
            return super().__torch_function__(func, types, args, kwargs)
        if op.name != "linear":
            return func(*args, **kwargs)
        args, kwargs = map_tensors((args, kwargs), self._constant)
        tensors = tensors_in(*args, *kwargs.values())
        traced = [t for t in tensors if t.requires_grad]
        call = Call("linear", "linear", func, args, kwargs, self.batch, tensors, [None] * len(tensors), traced)
        if not self.sparse_rows.takes(call):
            return func(*args, **kwargs)
        made = self.sparse_rows.run(call, None)
        attach(made, self._node("linear", (), guess(made.shape, (), self.batch)))
        self.last_linear = node_of(made), (*args, kwargs.get("bias"))[:3]
        return made

    def _read(self, tensor: Tensor) -> Tensor:
        """Return a quantised weight by the numbers that it stands for; other tensors as they are."""
        return self._constant(tensor) if is_quantised(tensor) else tensor


@dataclass
class Rerun:
    """A forward pass with other values.

    Attributes:
        seed: its target.
        leaves: the values, as leaves of the autograd graph if there is one.
    """

    seed: Seed
    leaves: list[Tensor]

    def gradients(self) -> list[Tensor]:
        """Return the gradient of the target with respect to each value."""
        start, sent = self.seed.start
        found = sent_back(start, sent.to(start.dtype), self.leaves)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(self.leaves, found, strict=True)]
