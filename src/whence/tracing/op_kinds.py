"""What kind of operation a call is: by its name, and by what its operands are.

A kind is what a rulebook has a rule for:

=====================  ================================================================================
kind                   operation
=====================  ================================================================================
``linear``             a weighted sum with constant weights, perhaps a bias
``convolution``        the same, over space
``matmul``             a product of two tensors that both depend on the input (queries and keys)
``mix``                attention probabilities times values
``attention``          a fused attention (queries, keys, values at once)
``softmax``            softmax
``add``                a sum of two tensors that both depend on the input (a residual connection)
``shift-by-constant``  a sum with a constant tensor (a mask, a position embedding, a separate bias)
``shift``              a sum with a number
``scale``              a product with a constant
``gate``               a product of two different functions of the input (a gated unit)
``norm``               layer_norm, rms_norm
``center``             a tensor minus a statistic of itself (an unfused norm)
``normalise``          a tensor times or over a deviation of itself (an unfused norm)
``ratio``              any other quotient of two tensors that both depend on the input
``gated``              an activation of the form x g(x): GELU, SiLU, ReLU, a power
``activation``         any other elementwise function that is finite everywhere: tanh, sigmoid
``function``           an elementwise function that is no activation: exp, log, sqrt
``reduce``             a mean, a sum, a pooling
``selecting``          picking tokens or entries by their place
``extreme``            picking entries by their size: maximum, top-k, sorting
``structural``         moving, joining, copying entries
``identity``           dropout in evaluation
``discrete``           comparisons, arg-max: no derivative
``unknown``            everything else
=====================  ================================================================================

``ratio``, ``function`` and ``unknown`` are no parts of a Transformer by themselves. Coverage lists them, whatever
their rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import operations as ops
from .attention_record import in_pieces, map_in
from .op_call import Call, Classification, map_tensors
from .recognition.deviation import deviation_in, is_centering
from .recognition.elementwise import function_kind, is_elementwise, is_gated, is_identity
from .tensor_info import node_of


def classified(call: Call) -> Classification:
    """Return the kind of an operation, and which operand is a statistic of the other or an attention map."""
    if call.name in ("add", "sub"):
        return _sum(call)
    if call.name in ("mul", "div", "neg"):
        return _product(call)
    if call.name in ops.PRODUCTS or (call.name == "linear" and len(call.traced) == 2 and len(call.tensors) == 2):
        return _contraction(call)
    return Classification(_other(call))


def _other(call: Call) -> str:
    """Return the kind of an operation that is no sum and no product."""
    if call.name in ops.SCATTERING and _collects(call):
        return "reduce"
    if call.name in ops.CLIPPING and len(call.traced) == 1:
        return _clipping(call)
    if call.name == "batch_norm" and call.argument(5, "training", False):
        return "unknown"  # its statistics are those of the batch
    if call.name in ("pow", "float_power") and not _is_whole(call.argument(1, "exponent")):
        return "function"
    return ops.spec(call.name).kind or _elementwise(call)


def _is_whole(exponent: object) -> bool:
    """Return whether a power is a polynomial."""
    return isinstance(exponent, int | float) and exponent >= 0 and float(exponent).is_integer()


def _elementwise(call: Call) -> str:
    """The kind of an operation that is not known by its name: by its values, if it is an elementwise function."""
    x = next(iter(call.traced), None)
    if x is None or len(call.traced) > 1 or not x.is_floating_point() or x.is_meta or call.inplace:
        return "unknown"

    def at(value: Tensor) -> Tensor:
        args, kwargs = map_tensors((call.args, call.kwargs), lambda t: value if t is x else t)
        out: Tensor = call.func(*args, **kwargs)
        return out if isinstance(out, Tensor) else value[:0]

    try:
        with torch.no_grad():
            if not is_elementwise(at, x.detach()):
                return "unknown"
            return function_kind(at, x)
    except RuntimeError:
        return "unknown"


def _collects(call: Call) -> bool:
    """Return whether several entries are added at one place."""
    source = call.traced[-1] if call.traced else None
    if source is None or source.is_meta or source is not call.args[3]:
        return False
    with torch.no_grad():
        into = torch.zeros(call.args[0].shape, device=source.device, dtype=torch.int32)
        counts = getattr(into, call.name)(*call.args[1:3], torch.ones_like(source, dtype=torch.int32))
    return bool((counts > 1).any())


def _clipping(call: Call) -> str:
    """A function that leaves its argument as it is, between bounds: ReLU, if it is 0 at 0 and grows."""
    x = call.traced[0]
    other = ops.spec(call.name).kind
    if not x.is_floating_point() or x.is_meta or any(_varies(t) for t in call.tensors if t is not x):
        return other

    def at(value: Tensor) -> Tensor:
        args, kwargs = map_tensors((call.args, call.kwargs), lambda t: value if t is x else t)
        out: Tensor = call.func(*args, **kwargs)
        return out

    with torch.no_grad():
        return "gated" if is_gated(at, x) and not is_identity(at, x) else other


def _varies(tensor: Tensor) -> bool:
    return tensor.is_meta or bool((tensor != tensor.flatten()[0]).any())


def _sum(call: Call) -> Classification:
    if len(call.tensors) < 2 or any(t.numel() == 1 and not t.requires_grad for t in call.tensors):
        return Classification("shift")
    a, b = call.tensors[:2]
    if not (a.requires_grad and b.requires_grad):
        return Classification("shift-by-constant")
    if a.is_complex() or b.is_complex():  # rules are for real numbers
        return Classification("unknown")
    if not is_centering(call):
        return Classification("add")
    return Classification("center", min((a, b), key=lambda t: node_of(t).moved_from().numel))


def _product(call: Call) -> Classification:
    if len(call.tensors) < 2:
        return Classification("scale")
    a, b = call.tensors[:2]
    if not b.requires_grad:
        return Classification("scale")
    if not a.requires_grad:
        return Classification("scale" if call.name == "mul" else "function")
    if call.name == "mul" and node_of(a).root is node_of(b).root:  # one function of one tensor, no gate
        return Classification("function")
    statistic = deviation_in(call)
    if statistic is not None:
        node_of(statistic).divides()
    elif call.name == "div":
        return Classification("ratio", b)
    else:  # what was divided by a deviation is multiplied with it again
        statistic = next((t for t in (a, b) if node_of(t).moved_from().deviation), None)
    return Classification("gate" if statistic is None else "normalise", statistic)


def _contraction(call: Call) -> Classification:
    if sum(t.requires_grad for t in call.tensors) < 2:
        return Classification("linear")
    found = map_in(call)
    found = in_pieces(call) if found is None else found
    return Classification("matmul" if found is None else "mix", probabilities=found)
