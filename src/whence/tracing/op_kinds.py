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
``self-gate``          a product of two elementwise functions of one tensor (an activation written out)
``norm``               layer_norm, rms_norm
``center``             a tensor minus a statistic of itself (a norm written out)
``normalise``          a tensor times or over a statistic of itself (a norm written out), any quotient
``gated``              an activation of the form x g(x): GELU, SiLU, ReLU, a power
``activation``         any other elementwise function: tanh, sigmoid, exp
``reduce``             a mean, a sum, a pooling
``selecting``          picking tokens or entries by their place
``extreme``            picking entries by their size: maximum, top-k, sorting
``structural``         moving, joining, copying entries
``identity``           dropout in evaluation
``discrete``           comparisons, arg-max: no derivative
``unknown``            everything else
=====================  ================================================================================
"""

from __future__ import annotations

from . import operations as ops
from .node import Node
from .op_call import Call

_BY_NAME: dict[str, str] = {}
for _kind, _names in {
    "structural": ops.STRUCTURAL,
    "selecting": ops.SELECTING,
    "extreme": ops.EXTREMES,
    "linear": ops.LINEAR,
    "convolution": ops.CONVOLUTIONS,
    "norm": ops.NORMS,
    "gated": ops.GATED,
    "activation": ops.ACTIVATIONS,
    "softmax": ops.SOFTMAX,
    "attention": ops.ATTENTION,
    "identity": ops.IDENTITY,
    "reduce": ops.REDUCING,
    "discrete": ops.DISCRETE,
}.items():
    for _name in _names:
        _BY_NAME.setdefault(_name, _kind)


def kind_of(call: Call) -> str:
    """The kind of an operation."""
    if call.name in ("add", "sub"):
        return _sum(call)
    if call.name in ("mul", "div", "neg"):
        return _product(call)
    if call.name in ops.PRODUCTS:
        return _contraction(call)
    return _BY_NAME.get(call.name, "unknown")


def _sum(call: Call) -> str:
    if len(call.tensors) < 2 or any(t.numel() == 1 and not t.requires_grad for t in call.tensors):
        return "shift"
    a, b = call.tensors[:2]
    if not (a.requires_grad and b.requires_grad):
        return "shift-by-constant"
    na, nb = call.nodes[:2]
    if call.name == "sub" and nb is not None and nb.statistic and not (na is not None and na.statistic):
        return "center"
    return "add"


def _product(call: Call) -> str:
    if len(call.tensors) < 2:
        return "scale"
    a, b = call.tensors[:2]
    if not b.requires_grad:
        return "scale"
    if not a.requires_grad:
        return "scale" if call.name == "mul" else "activation"
    na, nb = call.nodes[:2]
    if call.name == "div":
        return "normalise"
    if na is None or nb is None:
        return "gate"
    if na.statistic != nb.statistic:
        return "normalise"
    return "self-gate" if na.root is nb.root else "gate"


def _contraction(call: Call) -> str:
    if len(call.tensors) == 2:
        for mine, other in ((0, 1), (1, 0)):
            node = call.nodes[mine]
            if node is not None and node.softmax is not None and call.tensors[other].requires_grad:
                return "mix"
    return "matmul" if sum(t.requires_grad for t in call.tensors) > 1 else "linear"


_KEEPING_VALUE = {"to", "float", "double", "type_as", "contiguous", "clone", "bfloat16", "half"}


def inherit(call: Call, node: Node) -> None:
    """Pass on what an operation leaves true of its main operand."""
    if not node.parents:
        return
    main, kind = node.parents[0], call.kind
    if kind == "softmax":
        dim = call.argument(1, "dim", -1)
        node.softmax = node.axes[dim if isinstance(dim, int) else -1]
    elif kind in ("structural", "identity", "scale", "selecting"):
        node.softmax = main.softmax
        node.mixed = main.mixed
        node.learned = main.learned
    elif kind == "linear" and main.softmax in node.axes:  # heads that are mixed (talking heads): weights of keys still
        node.softmax = main.softmax
    node.mixed = node.mixed or kind in ("mix", "attention")
    node.projection = kind == "linear" and main.mixed
    twins = kind == "add" and len(node.parents) == 2 and main.root is node.parents[1].root
    if kind in ("scale", "identity") or call.name in _KEEPING_VALUE:
        node.root = main.root
        node.linear = main.linear
        node.activated = main.activated
    elif twins or kind in ("activation", "gated", "shift", "self-gate"):
        node.root = main.root
        node.linear = False
        node.activated = True
    if call.name in ops.STATISTICS:
        node.statistic = True
    elif kind in ("structural", "identity", "scale", "activation", "shift", "selecting"):
        node.statistic = main.statistic
