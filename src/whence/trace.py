"""The trace: the user's model runs as it is, and each torch operation is swapped for one with the same value.

:class:`Trace` is a ``TorchFunctionMode``. It knows operations and no method: for every call it finds out what
kind of operation this is (from its name and from what its operands are), asks the rulebook for the rule of
that kind, and notes what happened: attentions, residual additions, sources, what had a rule and what had not.

The model is not touched. Parameters enter each operation detached, so nothing about them needs to be switched
off and on again, and two threads may explain the same model at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import operations as ops
from .attention import AttentionRecord, attend
from .axes import Axes, Axis, Dim, Known, follow, guess
from .coverage import Coverage
from .errors import ModelError

if TYPE_CHECKING:
    from .ledger import Ledger
    from .propagate import Local

Rule = Callable[["Call"], Any]


class Node:
    """What the trace knows of one tensor. It holds no tensor, so it keeps no memory alive."""

    __slots__ = ("activated", "axes", "kind", "linear", "linear_uses", "other_uses", "parents", "protect", "root",
                 "seq", "softmax", "statistic")  # fmt: skip

    def __init__(self, seq: int, kind: str, parents: tuple[Node, ...], axes: Axes) -> None:
        self.seq = seq
        self.kind = kind
        self.parents = parents
        self.axes = axes
        #: the tensor of which this one is an elementwise function
        self.root: Node = self
        #: whether it is a constant multiple of its root, and whether an activation lies between
        self.linear = True
        self.activated = False
        #: whether it is a statistic (mean, deviation, norm) of a tensor
        self.statistic = False
        #: the axis over which it sums to one, if it is a softmax
        self.softmax: Dim | None = None
        self.linear_uses = 0
        self.other_uses = 0
        #: called before the tensor is overwritten in place
        self.protect: Callable[[], None] | None = None

    def reaches(self, other: Node) -> list[Node] | None:
        """The nodes between this one and its ancestor ``other``; ``None`` if it is no ancestor."""
        seen = {id(self): self}
        stack = [self]
        found = False
        while stack:
            for parent in stack.pop().parents:
                found = found or parent is other
                if id(parent) not in seen and parent.seq > other.seq:
                    seen[id(parent)] = parent
                    stack.append(parent)
        return list(seen.values()) if found else None


@dataclass
class Source:
    """Where the user's input becomes a float tensor that can carry relevance."""

    name: str  # the input's name
    tensor: Tensor  # a leaf: the raw float input, or the rows looked up for integer input
    node: Node
    embedded: bool  # whether it is the output of an embedding


@dataclass
class Residual:
    """A residual addition: the trunk, and the attentions (by index) inside its other branch."""

    trunk: Tensor
    output: Tensor
    attentions: list[int]


@dataclass
class Call:
    """One operation about to happen."""

    name: str
    kind: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    trace: Trace
    tensors: list[Tensor]  # every tensor argument, in order
    nodes: list[Node | None]  # what is known of each
    traced: list[Tensor] = field(default_factory=list)  # those that depend on the input
    inplace: bool = False
    local: Local | None = None  # left by a rule that carries relevance

    def run(self, *replacements: Tensor) -> Any:
        """Run the operation, with the traced tensors replaced by ``replacements`` where given."""
        if not replacements:
            return self.func(*self.args, **self.kwargs)
        swap = {id(old): new for old, new in zip(self.traced, replacements, strict=True)}
        args, kwargs = _map((self.args, self.kwargs), lambda t: swap.get(id(t), t))
        return self.func(*args, **kwargs)

    def replace(self, tensors: list[Tensor]) -> None:
        """Put other tensors in the place of the traced ones."""
        swap = {id(old): new for old, new in zip(self.traced, tensors, strict=True)}
        self.args, self.kwargs = _map((self.args, self.kwargs), lambda t: swap.get(id(t), t))
        self.tensors = [swap.get(id(t), t) for t in self.tensors]
        self.traced = tensors

    def node(self, tensor: Tensor) -> Node:
        """What is known of a traced operand."""
        node = getattr(tensor, "_whence", None)
        assert isinstance(node, Node)
        return node


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        out = [_map(v, change) for v in value]
        return type(value)(*out) if hasattr(value, "_fields") else type(value)(out)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)


class Trace(TorchFunctionMode):
    """Runs whatever is called inside it under a rulebook.

    Args:
        rules: the rule of each kind of operation; a kind without one keeps its plain derivative.
        batch: the number of samples.
        maps: whether attention probabilities are needed as tensors (fused attention is then written out).
        fan_out: called with each tensor that a second operation reads.
        names: the name of each parameter, by ``id``.

    Example:
        >>> with Trace({}, batch=2) as trace:
        ...     output = model(trace.input("x", x))
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        batch: int,
        maps: bool = False,
        fan_out: Callable[[Tensor, Node], None] | None = None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.batch = Axis(batch)
        self.maps = maps
        self.fan_out = fan_out
        self.names = names or {}
        self.coverage = Coverage()
        self.ledger: Ledger | None = None
        self.attentions: list[AttentionRecord] = []
        self.residuals: list[Residual] = []
        self.sources: list[Source] = []
        self.mixers: dict[int, int] = {}  # seq of the node that an attention wrote -> its index
        self.entry: Tensor | None = None  # what the first attention reads, where no residual says so
        self._early: list[Tensor] | None = []
        self._seq = 0
        self._constants: dict[int, Tensor] = {}
        self._inputs: dict[int, str] = {}
        self._hooks_at_start = _saved_tensor_hooks()

    # -- sources ---------------------------------------------------------------------------------------------

    def input(self, name: str, value: Tensor) -> Tensor:
        """A user's tensor, ready to enter the model: a float tensor becomes a leaf that carries relevance."""
        tensor = value.detach().clone() if value.is_inference() else value.detach()
        node = self._new("input", (), guess(tensor.shape, (), self.batch))
        if tensor.is_floating_point():
            tensor.requires_grad_()
            self.sources.append(Source(name, tensor, node, embedded=False))
        self._inputs[node.seq] = name
        tensor._whence = node  # type: ignore[attr-defined]  # the node travels with the tensor
        return tensor

    def _embed(self, call: Call) -> Tensor:
        """Rows looked up for the user's integers are where relevance can be read: a leaf of their own."""
        out: Tensor = call.run().detach()
        origin = next((n for n in call.nodes if n is not None), None)
        self._note(call, out)
        if origin is not None:
            out.requires_grad_()
            while origin.parents and origin.kind == "structural":
                origin = origin.parents[0]
            name = self._inputs.get(origin.seq, "")
            self.sources.append(Source(name, out, call.node(out), embedded=True))
        return out

    # -- the mode --------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op = ops.operation(func)
        if op.name in ops.PASSIVE:
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        if not any(isinstance(t, torch.nn.Parameter) or hasattr(t, "_whence") or t.requires_grad for t in tensors):
            return func(*args, **kwargs)
        if any(isinstance(t, torch.nn.Parameter) for t in tensors):
            args, kwargs = _map((args, kwargs), self._constant)
            tensors = list(_tensors((args, kwargs)))
        nodes = [getattr(t, "_whence", None) for t in tensors]
        call = Call(op.name, "", func, args, kwargs, self, tensors, nodes, inplace=op.inplace)
        call.traced = list({id(t): t for t in tensors if t.requires_grad}.values())
        if op.name == "embedding":
            return self._embed(call)
        if not call.traced and all(n is None for n in nodes):
            return func(*args, **kwargs)
        self._check(call)
        composite = self._composite(func, op)
        if composite is not None:
            with self, torch.enable_grad():
                result = composite(*args, **kwargs)
            return _overwrite(call, result) if op.inplace else result
        with torch.enable_grad():
            return self._perform(call, op)

    def _composite(self, func: Callable[..., Any], op: ops.Operation) -> Callable[..., Any] | None:
        if op.name in ops.COMPOSITE:
            return ops.COMPOSITE[op.name]
        if op.name in ops.OPENED and hasattr(func, "__code__"):
            return ops.opened(func)
        if op.name in ops.ATTENTION and self.maps:
            return attend
        return None

    def _perform(self, call: Call, op: ops.Operation) -> Any:
        call.kind = self._kind(call)
        rule = self.rules.get(call.kind) if call.traced else None
        if call.traced:
            self.coverage.count(call.name, call.kind, rule)
        if op.inplace:
            node = call.nodes[0]
            if node is not None and node.protect is not None:
                node.protect()
            if rule is not None:
                call.func = getattr(torch.Tensor, call.name, None) or getattr(torch, call.name)
                return self._note(call, _overwrite(call, rule(call)))
        watched = self.ledger.watch(call, rule) if self.ledger is not None and call.traced else None
        if call.kind in ("mix", "attention") and call.traced:
            out = self._attention(call, rule)
        else:
            out = self._note(call, call.run() if rule is None else rule(call))
        return out if watched is None else watched(out)

    def _constant(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            return tensor
        constant = self._constants.get(id(tensor))
        if constant is None:
            constant = self._constants[id(tensor)] = tensor.detach()
            constant._whence_name = self.names.get(id(tensor), "")  # type: ignore[attr-defined]  # for messages
        return constant

    # -- what kind of operation ------------------------------------------------------------------------------

    def _kind(self, call: Call) -> str:
        name = call.name
        if name in ("add", "sub"):
            return self._sum(call)
        if name in ("mul", "div"):
            return self._product(call)
        if name in ops.PRODUCTS:
            return self._contraction(call)
        for kind, names in _KINDS.items():
            if name in names:
                return kind
        return "unknown"

    def _sum(self, call: Call) -> str:
        if len(call.tensors) < 2 or any(t.numel() == 1 and not t.requires_grad for t in call.tensors):
            return "shift"
        if len(call.traced) < 2 and not (len(call.tensors) == 2 and call.tensors[0] is call.tensors[1]):
            return "shift-by-constant"
        a, b = call.nodes[:2]
        if call.name == "sub" and b is not None and b.statistic and not (a is not None and a.statistic):
            return "center"
        return "add"

    def _product(self, call: Call) -> str:
        if len(call.traced) == 0 or len(call.tensors) < 2:
            return "scale"
        a, b = call.tensors[:2]
        if a is not b and not b.requires_grad:
            return "scale"
        if a is not b and not a.requires_grad:
            return "scale" if call.name == "mul" else "activation"
        na, nb = call.nodes[:2]
        if na is None or nb is None:
            return "gate"
        if na.statistic != nb.statistic and (nb.statistic or call.name == "mul"):
            return "normalise"
        if call.name == "div":
            return "normalise"
        return "self-gate" if na.root is nb.root else "gate"

    def _contraction(self, call: Call) -> str:
        a, b = call.nodes[0], (call.nodes[1] if len(call.nodes) > 1 else None)
        if a is not None and a.softmax is not None and call.tensors[-1].requires_grad:
            return "mix"
        if b is not None and b.softmax is not None and call.tensors[0].requires_grad and call.name == "einsum":
            return "mix"
        return "matmul" if len(call.traced) > 1 else "linear"

    # -- what happened ---------------------------------------------------------------------------------------

    def _new(self, kind: str, parents: tuple[Node, ...], axes: Axes) -> Node:
        self._seq += 1
        return Node(self._seq, kind, parents, axes)

    def _note(self, call: Call, result: Any) -> Any:
        """Attach a node to every tensor that an operation returned."""
        outputs = [call.args[0]] if call.inplace else list(_tensors(result))
        outputs = [t for t in outputs if call.inplace or not any(t is old for old in call.tensors)]
        if not outputs:
            return result
        parents = tuple(n for n in call.nodes if n is not None)
        for tensor, read in zip(call.tensors, call.nodes, strict=True):
            if read is not None and any(t.requires_grad for t in outputs):
                self._use(call, tensor, read)
        known: list[Known] = [
            (n.axes if n is not None else ((),) * t.dim(), t.shape)
            for t, n in zip(call.tensors, call.nodes, strict=True)
        ]
        shapes = [t.shape for t in outputs]
        axes = follow(call.name, call.func, call.args, call.kwargs, known, shapes, self.batch)
        for tensor, dims in zip(outputs, axes, strict=False):
            node = self._new(call.kind, parents, dims)
            self._flow(call, node, parents)
            if call.local is not None:
                call.local.node, node.protect = node, call.local.protect
            tensor._whence = node  # type: ignore[attr-defined]  # the node travels with the tensor
            if self._early is not None and tensor.requires_grad:
                self._early.append(tensor)
        if call.kind == "add":
            self._residual(call, outputs[0])
        return result

    def _use(self, call: Call, tensor: Tensor, node: Node) -> None:
        """Count who reads a tensor; the second reader makes it a fan-out."""
        if call.kind == "linear":
            node.linear_uses += 1
        else:
            node.other_uses += 1
        if self.fan_out is not None and node.linear_uses + node.other_uses == 2 and tensor.requires_grad:
            self.fan_out(tensor, node)

    def _flow(self, call: Call, node: Node, parents: tuple[Node, ...]) -> None:
        """Pass on what an elementwise or structural operation leaves true of its operand."""
        main = parents[0] if parents else None
        if main is None:
            return
        kind = call.kind
        if kind in ("softmax",):
            dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)
            node.softmax = node.axes[dim if isinstance(dim, int) else -1]
        elif kind in ("structural", "identity", "scale", "selecting"):
            node.softmax = main.softmax
        if kind in ("scale", "identity") or call.name in ("to", "float", "double", "type_as", "contiguous", "clone"):
            node.root, node.linear, node.activated = main.root, main.linear, main.activated
        elif kind in ("activation", "gated", "shift", "self-gate") or (kind == "add" and len(parents) == 2 and parents[0].root is parents[1].root):
            node.root, node.linear, node.activated = main.root, False, True
        if call.name in ops.STATISTICS:
            node.statistic = True
        elif kind in ("structural", "identity", "scale", "activation", "shift", "selecting"):
            node.statistic = main.statistic

    def _attention(self, call: Call, rule: Rule | None) -> Any:
        record = None
        if call.kind == "mix":
            record = AttentionRecord.of(call)
            if record is None:
                call.kind = "matmul" if len(call.traced) > 1 else "linear"
                rule = self.rules.get(call.kind)
        out = call.run() if rule is None else rule(call)
        self._note(call, out)
        if record is not None or call.kind == "attention":
            if self._early is not None:
                self.entry, self._early = self._common(call), None
            self.mixers[call.node(out).seq] = len(self.attentions)
            self.attentions.append(record if record is not None else AttentionRecord.fused(call))
        return out

    def _common(self, call: Call) -> Tensor | None:
        """The last tensor from which everything that the first attention reads derives."""
        ends = [n for n in call.nodes if n is not None]
        candidates = [source.tensor for source in self.sources] + (self._early or [])
        for tensor in reversed(candidates):
            node = call.node(tensor)
            if all(end.seq > node.seq and end.reaches(node) is not None for end in ends):
                return tensor
        return None

    def _residual(self, call: Call, output: Tensor) -> None:
        """Is one summand an ancestor of the other? Then it is the trunk and the other the branch."""
        a, b = call.nodes[:2]
        if a is None or b is None or a is b or call.tensors[0].shape != call.tensors[1].shape:
            return
        trunk, branch = (0, b) if a.seq < b.seq else (1, a)
        between = branch.reaches(a if trunk == 0 else b)
        if between is None:
            return
        inside = sorted(self.mixers[n.seq] for n in between if n.seq in self.mixers)
        self.residuals.append(Residual(call.tensors[trunk], output, inside))

    def _check(self, call: Call) -> None:
        """Refuse what would be wrong without anybody noticing."""
        for t in call.traced:
            if type(t.grad_fn).__name__ == "CheckpointFunctionBackward":
                raise ModelError(
                    "The model runs part of itself under reentrant gradient checkpointing, which recomputes it without "
                    "the rules of the explanation. Switch checkpointing off (HuggingFace: "
                    "model.gradient_checkpointing_disable()) and explain again."
                )
            if not hasattr(t, "_whence"):
                self.coverage.foreign(type(t.grad_fn).__name__ if t.grad_fn is not None else "leaf")
                t._whence = self._new("foreign", (), guess(t.shape, (), self.batch))  # type: ignore[attr-defined]  # as above
        if call.traced and _saved_tensor_hooks() != self._hooks_at_start:
            raise ModelError(
                "The model runs part of itself under gradient checkpointing (or other saved-tensor hooks), which "
                "recomputes it without the rules of the explanation. Switch checkpointing off (HuggingFace: "
                "model.gradient_checkpointing_disable()) and explain again."
            )


_KINDS: dict[str, set[str]] = {
    "structural": ops.STRUCTURAL,
    "selecting": ops.SELECTING,
    "linear": ops.LINEAR,
    "convolution": ops.CONVOLUTIONS,
    "norm": ops.NORMS,
    "gated": ops.GATED,
    "activation": ops.ACTIVATIONS,
    "softmax": ops.SOFTMAX,
    "attention": ops.ATTENTION,
    "identity": ops.IDENTITY,
    "reduce": ops.REDUCING,
    "scale": {"neg"},
    "discrete": ops.DISCRETE,
    "statistic": ops.STATISTICS,
}


def _overwrite(call: Call, result: Tensor) -> Tensor:
    """Finish an in-place operation: the first operand takes the value and the history of the result."""
    target: Tensor = call.args[0]
    return target.copy_(result)


def _saved_tensor_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)
