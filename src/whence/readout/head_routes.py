"""Routes: what each head of an attention brings from each token to the residual stream, as vectors.

What an attention adds to token ``i`` is a sum over heads ``h`` and tokens ``j``, ``sum_hj A_hij v_hj W_h``, but for the
bias of its output projection: one vector for each route from ``j`` to ``i``. The parts are read from the operations
that the model ran, whatever its modules are called: the map and the values from the attention, ``W`` from the linear
layer that reads what the attention wrote, the stream before and behind from the residual addition around it. Where
the branch goes on to a norm or a scaling (Gemma 2, LayerScale), each row ``i`` is also multiplied by a number, and each
feature by another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..errors import ModelError
from ..propagation.relevance_function import linear_parts
from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.axes import Axis, Dim
from ..tracing.node import Node, attach, edge_of, node_of
from ..tracing.op_call import Call, Rule
from ..tracing.reductions import arrange, precise
from ..tracing.residuals import Residual
from .residual_blocks import surrounding, vectors

#: behind the output projection: kinds that leave a row as it is, and kinds that multiply it
LEAVING = {"structural", "identity", "add", "shift", "shift-by-constant"}
SCALING = {"scale", "normalise", "norm"}


@dataclass
class Projection:
    """A linear layer that reads what an attention wrote.

    Attributes:
        attention: what is known of the attention's output.
        reads: what is known of its own input: that output, at most moved or scaled.
        wrote: what is known of its output.
        place: where the gradient of its output arrives.
        weight: ``[inputs, outputs]``; ``None`` if it is no product of rows with one matrix.
    """

    attention: Node
    reads: Node
    wrote: Node
    place: GradientEdge
    weight: Tensor | None


class RouteRecorder:
    """Sees, during a forward, what routes are made of: residual sums and output projections.

    Example:
        >>> watch = RouteRecorder()
        >>> book = RouteRulebook(watch.watched({"attention": rules.show_map}), watch=watch)
    """

    def __init__(self) -> None:
        self.sums: list[tuple[Node, Tensor]] = []
        self.projections: list[Projection] = []
        self.centred: set[int] = set()  # norms that take a mean off
        self._batch: Axis | None = None

    def watched(self, book: Mapping[str, Rule]) -> dict[str, Rule]:
        """The same rules, with an eye on sums, linear layers and norms."""
        looks = {"add": self._sum, "linear": self._linear, "norm": self._norm}
        return {**book, **{kind: _Watched(look, book.get(kind)) for kind, look in looks.items()}}

    def _sum(self, call: Call, out: Tensor) -> None:
        if self._first(call):
            call.kept, call.placed = True, lambda node: self._keep(node, out.detach())

    def _linear(self, call: Call, out: Tensor) -> None:
        reads = node_of(call.traced[0])
        if reads.mixed and self._first(call):
            origin, place, weight = _attention(reads), get_gradient_edge(out), _matrix(call)
            call.placed = lambda node: self.projections.append(Projection(origin, reads, node, place, weight))

    def _norm(self, call: Call, out: Tensor) -> None:
        if call.name == "layer_norm" and self._first(call):
            call.placed = lambda node: self.centred.add(node.seq)

    def _keep(self, node: Node, value: Tensor) -> None:
        """Keep a sum; of those before it, only residual ones."""
        self.sums = [(n, t) for n, t in self.sums if n.residual]
        self.sums.append((node, value))

    def _first(self, call: Call) -> bool:
        """Whether this is the first forward under these rules: checkpoints run it again, for its gradients only."""
        self._batch = self._batch or call.batch
        return call.batch is self._batch


class _Watched:
    """A rule, or the lack of one, that is looked at."""

    def __init__(self, look: Callable[[Call, Tensor], None], rule: Rule | None) -> None:
        self.look, self.rule = look, rule
        self.__name__ = None if rule is None else getattr(rule, "__name__", str(rule))  # for the coverage

    def __call__(self, call: Call) -> Any:
        out = call.run() if self.rule is None else self.rule(call)
        self.look(call, out)
        return out


def _attention(mixed: Node) -> Node:
    """The attention's output that a tensor is, at most moved or scaled."""
    while mixed.kind not in ("mix", "attention"):
        mixed = mixed.parents[0]
    return mixed


def _matrix(call: Call) -> Tensor | None:
    """The weight of a linear layer, ``[inputs, outputs]``."""
    weight, _, apply = linear_parts(call)
    if weight is None or weight.dim() != 2 or call.name == "einsum":
        return None
    if apply is torch.nn.functional.linear:
        return weight.mT
    return weight if call.name == "addmm" or call.tensors[0] is call.traced[0] else None


@dataclass
class RouteRulebook(Rulebook):
    """A rulebook under which routes are seen."""

    watch: RouteRecorder = field(default_factory=RouteRecorder)


@dataclass
class HeadRoutes:
    """The routes of one attention.

    Attributes:
        run: the run they are of.
        record: the attention.
        residual: the addition around it.
        stream: the value of that sum, in the layout that the model has it.
        weight: ``[heads, features of a head, features]``, the output projection.
        rows: ``[batch, tokens]``, what each row is multiplied by behind it, and
        features: ``[batch, features]``, what each feature is multiplied by.
    """

    run: Run
    record: AttentionRecord
    residual: Residual
    stream: Tensor
    weight: Tensor
    rows: Tensor
    features: Tensor

    def before(self) -> Tensor:
        """``[batch, tokens, features]``: the stream that the attention is added to."""
        return vectors(self.run, self.residual.trunk)

    def behind(self) -> Tensor:
        """``[batch, tokens, features]``: the stream with what the attention has added."""
        return vectors(self.run, self.residual.output, self.stream)

    def by_head(self, values: Tensor) -> Tensor:
        """``[batch, heads, tokens, features of a head]``: a tensor laid out like the values, shared ones repeated."""
        record = self.record
        assert record.values is not None
        axes = node_of(record.values).axes
        keys = record.axes[record.key]
        at = next((i for i, dim in enumerate(axes) if dim == keys), values.dim() - 2)
        own = [i for i, dim in enumerate(axes) if i != at and record.batch not in dim and dim not in record.axes]
        found = arrange(precise(values), axes, record.batch, (at, [values.dim() - 1, *own][-1]))
        return found.repeat_interleave(record.shape[0] // found.shape[1], 1)

    def attention(self, rows: slice) -> Callable[[slice], Tensor]:
        """Some rows of the map, a piece of them at a time.

        Args:
            rows: which.

        Returns:
            A function from a piece, counted from the first of them, to ``[batch, heads, piece, tokens]``. Of a fused
            attention no more than the piece is made.
        """
        shown = self.record.shown
        if shown is None:
            whole = self.record.map()[:, :, rows]
            return lambda piece: whole[:, :, piece]
        query, mask = shown.query[..., rows, :], _of_rows(shown.mask, rows)
        if shown.causal:
            shape = query.shape[-2], shown.key.shape[-2]
            mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril(rows.start)
        some = replace(shown, query=query, mask=mask, causal=False)

        def made(piece: slice) -> Tensor:
            part = replace(some, query=some.query[..., piece, :], mask=_of_rows(some.mask, piece))
            return self.record.arrange(part.map())

        return made


def _of_rows(mask: Tensor | None, rows: slice) -> Tensor | None:
    """Some rows of a mask; one that is the same for all of them as it is."""
    return mask if mask is None or mask.dim() < 2 or mask.shape[-2] == 1 else mask[..., rows, :]


def routes(run: Run, watch: RouteRecorder, method: str) -> list[HeadRoutes]:
    """The routes of each attention, first layer first; a model without them is refused.

    Args:
        run: a run under the rules of ``watch``.
        watch: what it has seen.
        method: who asks, for errors.
    """
    around = surrounding(run, method)
    sums = {node.seq: value for node, value in watch.sums}
    return [
        _routes(run, watch, method, record, residual, sums[node_of(residual.output).seq])
        for record, residual in zip(run.trace.attentions, around, strict=True)
    ]


def _routes(
    run: Run, watch: RouteRecorder, method: str, record: AttentionRecord, residual: Residual, stream: Tensor
) -> HeadRoutes:
    assert record.output is not None
    made, branch = node_of(record.output), node_of(residual.branch)
    behind = [p for p in watch.projections if p.attention is made and _leads(branch, p.wrote)]
    read = behind[0].reads if behind else branch
    moved = not behind or {node.kind for node in _path(read, made)} <= {"structural", "identity"}
    weight = behind[0].weight if behind else torch.eye(stream.shape[-1], dtype=stream.dtype, device=stream.device)
    own = read.mixed and moved and _atoms(read.axes[-1]) == _features(record)
    if len(behind) > 1 or weight is None or not own:
        raise ModelError(
            f"'{method}' follows each head through one linear layer to the residual stream, but what this model's "
            "attention has read gets there in another way (a gate, several layers, a product that mixes heads with "
            "tokens). Use a method that reads attention maps alone (generic-attention, rollout)."
        )
    start = (behind[0].wrote, behind[0].place) if behind else (made, edge_of(record.output))
    gain = _gain(run, watch, method, residual, *start)
    return HeadRoutes(
        run, record, residual, stream, precise(weight.detach()).unflatten(0, (record.shape[0], -1)), *gain
    )


def _features(record: AttentionRecord) -> list[Axis]:
    """What an attention has read, as the axis of a row: one head after the other."""
    assert record.output is not None
    heads = [dim for d, dim in enumerate(record.axes) if d not in (record.query, record.key)]
    own = [dim for dim in node_of(record.output).axes if dim not in record.axes]
    return [atom for dim in [*heads, *own] for atom in _atoms(dim) if atom is not record.batch]


def _atoms(dim: Dim) -> list[Axis]:
    """The parts of an axis that are more than one entry: a batch of one may stand in any."""
    return [atom for atom in dim if atom.size > 1]


def _leads(end: Node, start: Node) -> bool:
    return end is start or end.between(start) is not None


def _gain(
    run: Run, watch: RouteRecorder, method: str, residual: Residual, start: Node, place: Tensor | GradientEdge
) -> tuple[Tensor, Tensor]:
    """What rows ``[batch, tokens]`` and features ``[batch, features]`` are multiplied by on the way to the sum."""
    like = vectors(run, residual.trunk)
    passed = _path(node_of(residual.branch), start)
    kinds = {node.kind for node in passed}
    if kinds - LEAVING - SCALING or any(node.seq in watch.centred for node in passed):
        raise ModelError(
            "Behind the output projection of this model's attention there is more than a scaling "
            f"({', '.join(sorted(kinds - LEAVING - SCALING)) or 'a LayerNorm'}), through which '{method}' does not "
            "follow each head. Use a method that reads attention maps alone (generic-attention, rollout)."
        )
    if not kinds & SCALING:
        return torch.ones_like(like[..., 0]), torch.ones_like(like[:, 0])
    branch, ends = residual.branch, ([edge_of(residual.branch)], [place])
    seed = torch.ones(branch.shape, dtype=branch.dtype, device=like.device)
    (found,) = torch.autograd.grad(*ends, [seed], retain_graph=True)  # type: ignore[arg-type]  # edges, too
    both = vectors(run, attach(found, start))
    rows = both.abs().sum(-1)
    return rows, both[:, 0] / rows[:, :1]


def _path(end: Node, start: Node) -> list[Node]:
    """What lies on the way of a gradient from one tensor back to another, which is left out."""
    leads: dict[int, bool] = {start.seq: True}
    passed: list[Node] = []

    def visit(node: Node) -> bool:
        if node.seq not in leads:
            further = [visit(parent) for parent in node.live] if node.seq > start.seq else []
            leads[node.seq] = any(further)
            if leads[node.seq]:
                passed.append(node)
        return leads[node.seq]

    visit(end)
    return passed
