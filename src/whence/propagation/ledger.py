"""The ledger: sums of relevance at every block boundary, and the relevance that each operation absorbed or created.

Conservation (Ali et al. 2022) requires that the relevance entering an operation leaves it again. It fails where biases
and constants absorb a share, and where a function is differentiated that is not homogeneous. The ledger records each
such loss (or gain) with its place, so that all relevance is accounted for::

    sums[:, l + 1] = sums[:, l] + everything absorbed inside block l
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..tracing.axes import Axes, Axis
from ..tracing.coverage import EXACT
from ..tracing.node import Node, walk
from ..tracing.op_call import Call, Hold, OutputNode, Rule, as_it_is, map_tensors
from ..tracing.reductions import per_sample, precise
from ..tracing.tensor_info import attach, info_of, node_of
from .entry_amounts import EntryAmounts, EntryKey
from .relevance_function import BackwardOp

#: products of two tensors
PRODUCTS = {"matmul", "mix"}
#: operations whose operands are finite: the infinities of masks end at a softmax, a sigmoid or an exponential; under a
#: zero gradient an infinity counts as 0
FINITE = {"linear", "convolution", "norm", "gated", "attention", "matmul", "mix"}
#: operations that may join constants with tensors that depend on the input
JOINING = {"cat", "stack", "where"}
#: functions of one tensor that are one step of the autograd graph, whose hooks get both gradients
SINGLE = {"layer_norm", "gelu", "silu", "relu", "tanh", "sigmoid"}
#: number of entries up to which a product of two tensors is cheap to make before it is summed
SMALL = 2**15
#: the kind of an entry that a stabiliser absorbed where a tensor is read several times
STABILISER = "stabiliser"


@dataclass(frozen=True)
class Entry:
    """Relevance that one operation absorbed (positive) or created (negative): ``[batch]``."""

    seq: int
    kind: str
    name: str
    amount: Tensor


class Ledger:
    """Relevance at every layer, and what was absorbed or created in between, per sample.

    Attributes:
        total: ``[batch]``, relevance at the target.
        sums: ``[batch, blocks + 1]``, relevance entering block 0, 1, ... and leaving the last block.
        amounts: ``[entries, batch]``, every loss and gain, in the order of the forward pass; see :attr:`entries`.

    Example:
        >>> e.ledger.sums[0, 0] / e.ledger.total[0]     # how much of the prediction reached the input
        >>> print(e.ledger)
    """

    def __init__(
        self,
        batch: Axis,
        hold: Hold = as_it_is,
        total: Tensor | None = None,
        sums: Tensor | None = None,
        marks: Sequence[int] = (),
        operations: Sequence[EntryKey] = (),
        amounts: Tensor | None = None,
    ) -> None:
        self.batch = batch
        self._hold = hold
        self.total = torch.zeros(batch.size) if total is None else total
        self.sums = torch.zeros(batch.size, 0) if sums is None else sums
        self.amounts = self.total.new_zeros(0, batch.size) if amounts is None else amounts
        self._marks = list(marks)
        self._operations = list(operations)
        self._recorded = EntryAmounts()
        self._learned: dict[int, bool] = {}  # by ``seq``: whether a tensor is made of learned queries alone

    # -- written during the backward pass ---------------------------------------------------------------------

    def watch(self, call: Call, rule: Rule | None) -> Callable[[Tensor], None] | None:
        """Prepare to measure what an operation absorbs, for a method in gradient form.

        Returns a function to call with the operation's output, or ``None`` if nothing can be absorbed there.
        """
        if rule is None and call.kind == "structural" and call.name not in JOINING:
            return None
        constant = constant_of(call)
        exact = call.kind in EXACT and call.name != "batch_norm" if rule is None else rule.conserves
        leaks = len(call.traced) > 1 and any(self._is_learned(node_of(t)) for t in call.traced)
        if constant is None and exact and not leaks:
            return None
        single = call.name in SINGLE and not call.inplace and len(call.traced) == 1
        if single and not exact and rule is None and call.argument(0, "input") is call.traced[0]:
            return functools.partial(self._record_step, call, constant)
        if exact and not leaks:
            return functools.partial(self._record_constant, call, constant, None)
        short = None if rule is not None or constant is not None or leaks else _sufficient_operand(call)
        chosen = [(t, 1.0) for t in call.traced] if short is None else [short]
        watched = [(attach(t.view_as(t), node_of(t)), times) for t, times in chosen]
        aliases = {id(t): alias for (t, _), (alias, _) in zip(chosen, watched, strict=True)}
        call.replace([aliases.get(id(t), t) for t in call.traced])
        kind = "constant" if exact else call.kind  # an exact operation loses only what learned queries absorb
        return functools.partial(self._record_operands, call, constant, kind, watched, short is None)

    def _is_learned(self, node: Node) -> bool:
        """Return whether a tensor depends on learned queries and on no input.

        A backward pass that is read at the input alone does not enter what made such a tensor. No hook is called there,
        and what an operation passes to it counts as absorbed by the operation.
        """
        if node.seq not in self._learned:
            above = walk([node], lambda n: () if n.learned or n.seq in self._learned else _differentiable(n))
            for found in sorted(above, key=lambda n: n.seq):
                parents = () if found.learned else _differentiable(found)
                of_learned = bool(parents) and all(self._learned[parent.seq] for parent in parents)
                self._learned.setdefault(found.seq, found.learned or of_learned)
        return self._learned[node.seq]

    def _record_constant(self, call: Call, constant: Tensor | None, loss: str | None, out: Tensor) -> None:
        """Measure what a constant absorbs, and subtract it from the loss that is measured under some kind, if any."""
        if constant is None or not out.requires_grad:
            return
        kind = "constant" if call.kind.startswith(("shift", "structural")) else "bias"
        if loss == kind:  # part of it
            return
        signs = {kind: 1.0} if loss is None else {kind: 1.0, loss: -1.0}
        self._measure(out, lambda: constant, signs, node_of(out), _name(call))

    def _record_operands(
        self,
        call: Call,
        constant: Tensor | None,
        kind: str,
        watched: list[tuple[Tensor, float]],
        whole: bool,
        out: Tensor,
    ) -> None:
        """Measure what an operation absorbs: the relevance of its output less that of its inputs.

        Args:
            call: the operation.
            constant: the constant that it adds.
            kind: of the loss.
            watched: its inputs, with the factor by which each counts.
            whole: whether the output counts; not where the inputs alone suffice.
            out: its output.
        """
        self._record_constant(call, constant, kind, out)
        if not out.requires_grad:
            return
        node = node_of(out)
        name = _name(call)
        if whole:
            node.keep_value()  # for the measurement
            self._measure(out, self._hold(out.detach()), {kind: 1.0}, node, name)
        for alias, times in watched:
            node_of(alias).keep_value()
            self._measure(alias, self._hold(alias.detach()), {kind: -times}, node, name)

    def bias(self, call: Call, placed: OutputNode) -> Callable[[Tensor], None] | None:
        """Return a function that records what the bias of a linear layer absorbs, or ``None`` without a bias.

        Args:
            call: the layer.
            placed: its output, when the function is called with the output's gradient.
        """
        bias = call.argument(2, "bias")
        if bias is None:
            return None
        name = _name(call)

        def record_bias(gradient: Tensor) -> None:
            node = placed.node
            self._add_inner(node.seq, name, {"bias": 1.0}, gradient, bias, node.axes)

        return record_bias

    def _record_step(self, call: Call, constant: Tensor | None, out: Tensor) -> None:
        """Measure a single step of the backward pass: what arrived, less what left and what a constant absorbed.

        The output is recomputed then: it is cheap, and autograd stores the step's input, not its output.
        """
        node = node_of(out)
        name = _name(call)
        axes = node_of(call.traced[0]).axes
        node_of(call.traced[0]).keep_value()  # for the measurement
        given = self._hold(call.traced[0].detach())
        func = call.func
        args = call.args[1:]
        kwargs = {k: v for k, v in call.kwargs.items() if k != "input"}

        def hook(left: tuple[Tensor, ...], arrived: tuple[Tensor | None, ...]) -> None:
            gradient = arrived[0]
            finite = node.kind in FINITE
            if gradient is None:
                return
            x = given()
            value = func(x, *args, **kwargs)
            if not finite:
                value = _zero_where_no_gradient(value, gradient)
                x = _zero_where_no_gradient(x, left[0])
            if constant is not None:
                self._add_inner(node.seq, name, {"bias": 1.0, node.kind: -1.0}, gradient, constant, node.axes, finite)
            self.absorb(node.seq, node.kind, name, _difference((gradient, value), (left[0], x), axes, self.batch))

        step: Any = out.grad_fn
        step.register_hook(hook)

    def _add_inner(
        self,
        seq: int,
        name: str,
        times: Mapping[str, float],
        gradient: Tensor,
        factor: Tensor,
        axes: Axes,
        finite: bool = True,
    ) -> None:
        """Record an inner product per sample, so many times under each kind; see :func:`_inner`."""
        if not finite:
            factor = _zero_where_no_gradient(factor, gradient)
        gradient = precise(gradient)
        batch_first = bool(axes) and axes[0] == (self.batch,) and len(gradient) == self.batch.size
        if factor.dim() == 1 and batch_first and gradient.dim() in (2, 3) and len(factor) == gradient.shape[-1]:
            rows = gradient if gradient.dim() == 2 else gradient.sum(1)
            self._recorded.add_product(seq, name, times, rows, factor.to(rows.dtype))
        else:
            self._recorded.add(seq, name, times, _inner(gradient, factor, axes, self.batch))

    def _measure(
        self, tensor: Tensor, held: Callable[[], Tensor], kinds: dict[str, float], node: Node, name: str
    ) -> None:
        """Record ``sum held x gradient`` under each kind, with its sign, when the gradient of ``tensor`` is known."""
        axes = node_of(tensor).axes
        finite = node.kind in FINITE

        def hook(gradient: Tensor | None) -> None:
            if gradient is None:  # of one output of several, which nothing that counts has read
                return
            self._add_inner(node.seq, name, kinds, gradient, held(), axes, finite)

        if node_of(tensor) is node:
            _with_gradient_of_output(tensor, hook)
        else:
            tensor.register_hook(hook)

    def operation(self, op: BackwardOp, incoming: Tensor, outgoing: tuple[Tensor, ...]) -> None:
        """Record what an operation absorbed, for a method in relevance form."""
        if outgoing[0] is incoming:
            return
        seq, name = op.node.seq, op.name
        self._recorded.add(seq, name, {op.kind: 1.0}, per_sample(precise(incoming), op.node.axes, self.batch))
        for relevance, node in zip(outgoing, op.nodes, strict=True):
            self._recorded.add(seq, name, {op.kind: -1.0}, per_sample(precise(relevance), node.axes, self.batch))

    def stabilised(self, node: Node, incoming: Tensor, outgoing: Tensor) -> None:
        """Record what a stabiliser absorbed where a tensor is read several times, for a method in relevance form."""
        for sign, relevance in ((1.0, incoming), (-1.0, outgoing)):
            amount = per_sample(relevance, node.axes, self.batch).detach()
            self._recorded.add(node.seq + 1, "copy", {STABILISER: sign}, amount)  # of the operations that read it

    def absorb(self, seq: int, kind: str, name: str, amount: Tensor) -> None:
        """Add to the entry of an operation: there is one per operation and kind, for its output and all its inputs."""
        self._recorded.add(seq, name, {kind: 1.0}, amount)

    def recorded(self) -> tuple[list[EntryKey], Tensor | None]:
        """Return the operations that have absorbed something so far, and what, ``[entries, batch]``."""
        return self._recorded.added(lambda operation: True)

    def bring(self, operations: Sequence[EntryKey], amounts: Tensor | None) -> None:
        """Add entries that were recorded in the same backward pass for another target."""
        if amounts is not None:
            self._recorded.add_table(operations, amounts)

    def clear(self) -> None:
        """Remove all entries."""
        self._recorded = EntryAmounts()
        self._operations = []
        self.amounts = self.amounts[:0]

    # -- read afterwards ---------------------------------------------------------------------------------------

    def close(
        self, total: Tensor, sums: Tensor | None, marks: list[int], before: set[int], ends: Collection[int] = ()
    ) -> None:
        """Set the sums at the block boundaries.

        Args:
            total: relevance at the target.
            sums: ``[batch, boundaries]``, relevance at each boundary; ``None`` without boundaries.
            marks: the boundaries, in the order of operations.
            before: operations before the place where the backward pass ended, whose entries are dropped.
            ends: those of them that made the tensors where it ended; the stabiliser of their readers is kept.
        """
        inner = before.difference(ends)

        def counts(x: EntryKey) -> bool:
            return x.seq - 1 not in inner if x.kind == STABILISER else x.seq not in before

        self._operations, amounts = self._recorded.added(counts)
        self.amounts = total.new_zeros(0, len(total)) if amounts is None else amounts.detach()
        self.total = total.detach()
        self.sums = total.new_zeros(len(total), 0) if sums is None else sums
        self._marks = marks

    @property
    def entries(self) -> list[Entry]:
        """Every loss and gain, in the order of the forward pass."""
        return [Entry(*of, amount) for of, amount in zip(self._operations, self.amounts.unbind(), strict=True)]

    def stage(self, entry: Entry) -> int:
        """Return 0 before the first block, ``l + 1`` inside block ``l``, one past the last block in the head."""
        return bisect_left(self._marks, entry.seq)

    @property
    def absorbed(self) -> dict[str, Tensor]:
        """Per kind of loss, ``[batch, blocks + 2]``: before block 0, in each block, in the head. Negative: created."""
        out: dict[str, Tensor] = {}
        for entry in self.entries:
            table = out.setdefault(
                entry.kind, torch.zeros(self.batch.size, len(self._marks) + 1, dtype=entry.amount.dtype)
            )
            table[:, self.stage(entry)] += entry.amount
        return out

    @property
    def imbalance(self) -> Tensor:
        """``[batch, blocks + 1]``: the conservation error of each block, and of the head, after all entries."""
        absorbed = sum(
            self.absorbed.values(), start=torch.zeros(self.batch.size, len(self._marks) + 1, dtype=self.sums.dtype)
        )
        above = torch.cat([self.sums[:, 1:], self.total[:, None]], 1)
        return above - self.sums - absorbed[:, 1:]

    def largest(self, k: int = 5, sample: int = 0) -> list[tuple[str, str, int, float]]:
        """Return the largest losses and gains of a sample: kind, name, stage and amount."""
        ranked = sorted(self.entries, key=lambda entry: -abs(float(entry.amount[sample])))
        return [(x.kind, x.name, self.stage(x), float(x.amount[sample])) for x in ranked[:k]]

    def select(self, samples: list[int]) -> Ledger:
        """Return the ledger of some samples."""
        return Ledger(
            Axis(len(samples)),
            total=self.total[samples],
            sums=self.sums[samples],
            marks=self._marks,
            operations=self._operations,
            amounts=self.amounts[:, samples],
        )

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the ledger, in a fixed order."""
        return [self.total, self.sums, self.amounts]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Ledger:
        """Return the same ledger with other tensors, taken in the order of :meth:`tensors`."""
        total, sums, amounts = next(tensors), next(tensors), next(tensors)
        return Ledger(
            self.batch, total=total, sums=sums, marks=self._marks, operations=self._operations, amounts=amounts
        )

    def record(self) -> dict[str, Any]:
        """Return the ledger as a dictionary to be saved in a file."""
        entries = [{"seq": x.seq, "kind": x.kind, "name": x.name, "amount": x.amount} for x in self.entries]
        return {"total": self.total, "sums": self.sums, "marks": self._marks, "entries": entries}

    @staticmethod
    def of(record: Mapping[str, Any]) -> Ledger:
        """Return the ledger of a dictionary made by :meth:`record`."""
        entries = [Entry(**entry) for entry in record["entries"]]
        return Ledger(
            Axis(len(record["total"])),
            total=record["total"],
            sums=record["sums"],
            marks=record["marks"],
            operations=[EntryKey(x.seq, x.kind, x.name) for x in entries],
            amounts=torch.stack([x.amount for x in entries]) if entries else None,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return (
            self._marks == other._marks
            and self._operations == other._operations
            and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
        )

    __hash__ = None  # type: ignore[assignment]  # tensors have no hash

    @staticmethod
    def join(ledgers: list[Ledger]) -> Ledger:
        """Return the ledger of a batch that was explained one by one; operations that a sample did not run absorb 0."""
        total = torch.cat([x.total for x in ledgers])
        marks = ledgers[0]._marks
        ends = [*marks, 1 + max(marks, default=0)]  # a place inside each stage
        recorded = EntryAmounts()
        for i, ledger in enumerate(ledgers):
            for x in ledger.entries:
                seq = x.seq if ledger._marks == marks else ends[ledger.stage(x)]
                alone = torch.zeros_like(total)
                alone[i] = x.amount[0]
                recorded.add(seq, x.name, {x.kind: 1.0}, alone)
        operations, amounts = recorded.added(lambda operation: True)
        return Ledger(
            Axis(len(ledgers)),
            total=total,
            sums=torch.cat([x.sums for x in ledgers]),
            marks=marks,
            operations=operations,
            amounts=amounts,
        )

    def __repr__(self) -> str:
        blocks = self.sums.shape[1] - 1
        lines = [f"Ledger of {self.batch.size} sample(s), {max(blocks, 0)} blocks; sample 0:"]
        lines.append(f"  target                  {float(self.total[0]):+.6g}")
        for i in range(blocks, -1, -1):
            where = f"into block {i}" if i < blocks else "out of the last block" if blocks else "into all streams"
            lines.append(f"  {where:<24}{float(self.sums[0, i]):+.6g}")
        for kind, name, stage, amount in self.largest():
            place = "embeddings" if stage == 0 else "head" if stage > blocks else f"block {stage - 1}"
            verb = "absorbed" if amount >= 0 else "created"
            lines.append(f"  {verb} {abs(amount):.3g} by {kind} at {name}" + (f" ({place})" if blocks > 0 else ""))
        return "\n".join(lines)


def _differentiable(node: Node) -> list[Node]:
    return [parent for parent in node.parents if parent.differentiable]


def constant_of(call: Call) -> Tensor | None:
    """Return the constant that an otherwise linear operation adds to its output, shaped to be added to it."""
    if call.name == "batch_norm" and call.args and not call.argument(5, "training", False):
        return torch.as_tensor(call.func(torch.zeros_like(call.args[0]), *call.args[1:], **call.kwargs))
    if call.kind in ("linear", "convolution", "norm"):
        position = {"linear": 2, "addmm": 0, "layer_norm": 3}.get(call.name, 2 if call.kind == "convolution" else None)
        bias = None if position is None else call.argument(position, "bias")
        if not isinstance(bias, Tensor) or bias.requires_grad:
            return None
        if call.kind == "convolution":  # of features first, with or without a batch
            return bias.reshape(-1, *(1,) * (call.argument(1, "weight").dim() - 2))
        return bias
    if call.kind in ("shift-by-constant", "shift"):
        other = next((a for a in call.args if not (isinstance(a, Tensor) and a.requires_grad)), 0.0)
        value = other if isinstance(other, Tensor) else torch.as_tensor(other, dtype=call.traced[0].dtype)
        scale = call.kwargs.get("alpha", 1) * (-1 if call.name == "sub" and other is call.args[1] else 1)
        return torch.mul(value.detach(), scale)
    if call.name in JOINING and any(
        t.is_floating_point() and t.numel() and not t.requires_grad for t in call.tensors
    ):  # learned tokens beside those of the input
        traced = {id(t) for t in call.traced}
        args, kwargs = map_tensors((call.args, call.kwargs), lambda t: torch.zeros_like(t) if id(t) in traced else t)
        return torch.as_tensor(call.func(*args, **kwargs))
    return None


def _sufficient_operand(call: Call) -> tuple[Tensor, float] | None:
    """Return the operand of a product at which all that it creates can be measured, and how often it counts.

    Gradient x value sums to the same over each operand and the output: a product of two creates that sum once more,
    measured at the smallest operand. Attention is linear in its values, whose sum is that of its output; what it
    creates is the relevance of its queries and keys, the same for both.
    """
    if call.kind == "attention":
        query, key, value = (call.argument(i, name) for i, name in enumerate(("query", "key", "value")))
        distinct = len({id(query), id(key), id(value)} & {id(t) for t in call.traced}) == 3 == len(call.traced)
        own = _of_samples(call, [query, key]) if distinct else []
        return (min(own, key=Tensor.numel), 2.0) if own else None
    own = _of_samples(call, call.traced) if call.kind in PRODUCTS and len(call.traced) == 2 else []
    return (min(own, key=Tensor.numel), 1.0) if own else None


def _of_samples(call: Call, tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors in which samples can be told apart: others have one gradient for all samples."""
    return [t for t in tensors if call.batch.size == 1 or any(call.batch in dim for dim in node_of(t).axes)]


def _with_gradient_of_output(made: Tensor, hook: Callable[[Tensor | None], None]) -> None:
    """Call a function with the gradient of an operation's output, even if the model overwrites that later.

    Overwriting discards a hook on a view (linear layers return a view of what they compute), but not one on the layer.
    """
    base, shape = made._base, made.shape
    if base is None or base.grad_fn is None or base.numel() != made.numel():
        made.register_hook(hook)
        return

    def before(gradients: tuple[Tensor, ...]) -> None:
        if gradients[0] is not None:
            hook(gradients[0].reshape(shape))

    base.grad_fn.register_prehook(before)


def _zero_where_no_gradient(factor: Tensor, gradient: Tensor) -> Tensor:
    """Return a factor that is 0 where the gradient is: an infinity counts as 0 there."""
    return torch.where(gradient == 0, 0.0, factor.to(gradient.dtype))


def _inner(gradient: Tensor, factor: Tensor, axes: Axes, batch: Axis) -> Tensor:
    """Return the per-sample inner product ``[batch]``."""
    gradient = precise(gradient)
    factor = factor if factor.dtype == gradient.dtype else factor.to(gradient.dtype)
    if factor.dim() == 1 and factor.shape[0] == gradient.shape[-1] and gradient.dim() > 1:
        return per_sample(gradient @ factor, axes[:-1], batch)
    if factor.shape == gradient.shape and axes and axes[0] == (batch,):
        if gradient.dim() > 1 and (gradient.numel() <= SMALL or gradient.device.type != "cpu"):
            return (gradient * factor).sum(tuple(range(1, gradient.dim())))
        order = sorted(range(1, gradient.dim()), key=lambda d: -gradient.stride()[d])  # as it lies in memory
        rows = [t.permute(0, *order).reshape(batch.size, -1) for t in (gradient, factor)]
        if batch.size == 1:
            return torch.dot(*(t.reshape(-1) for t in rows)).reshape(1)
        return torch.stack([torch.dot(a, b) for a, b in zip(*rows, strict=True)])
    return per_sample(gradient * factor, axes, batch)


def _difference(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], axes: Axes, batch: Axis) -> Tensor:
    """Return the difference ``[batch]`` of two inner products, of gradients and values with the same axes."""
    (a, x), (b, y) = ((precise(gradient), precise(value)) for gradient, value in (one, other))
    alike = {t.dtype for t in (a, x, b, y)} == {a.dtype} and a.shape == x.shape == b.shape == y.shape
    if alike and a.numel() <= SMALL and axes and axes[0] == (batch,) and a.dim() > 1:
        return torch.addcmul(a * x, b, y, value=-1).sum(tuple(range(1, a.dim())))
    return _inner(a, x, axes, batch) - _inner(b, y, axes, batch)


def _name(call: Call) -> str:
    names = [info_of(t).name for t in call.tensors]
    found = next((n for n in names if n), "")
    return found.rsplit(".", 1)[0] if found else call.name
