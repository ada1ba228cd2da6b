"""Routes: what each head of an attention adds from each token to the residual stream, as vectors.

What an attention adds to token ``i`` is a sum over heads ``h`` and tokens ``j``, ``sum_hj A_hij v_hj W_h``, except for
the bias of its output projection: one vector for each route from ``j`` to ``i``. Its factors are read from the
operations that the model ran, whatever its modules are called: the map and the values from the attention, ``W`` from
the linear layer that reads the attention's output, the stream before and after from the residual addition around it.
Where a norm or a scaling follows in the branch (Gemma 2, LayerScale), each row ``i`` is also multiplied by a number,
and each feature by another.
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
from ..tracing.node import Node
from ..tracing.op_call import Call, OnOutput, Rule, RuleResult
from ..tracing.recognition.contraction import align, terms
from ..tracing.reductions import arrange, precise, restored
from ..tracing.residuals import Residual
from ..tracing.tensor_info import attach, edge_of, node_of
from .residual_blocks import attention_residuals, token_vectors

#: after the output projection: kinds that leave a row as it is, and kinds that multiply it
PRESERVING = {"structural", "identity", "add", "shift", "shift-by-constant"}
SCALING = {"scale", "normalise", "norm"}


@dataclass
class Projection:
    """A linear layer that reads an attention's output.

    Attributes:
        attention: the node of the attention's output.
        input: the node of its own input: that output, at most moved or scaled.
        output: the node of its output.
        place: where the gradient of its output arrives.
        weight: ``[inputs, outputs]``; ``None`` if it is no product of rows with one matrix.
    """

    attention: Node
    input: Node
    output: Node
    place: GradientEdge
    weight: Tensor | None


class RouteRecorder:
    """A recorder of what routes are computed from in a forward pass: residual sums and output projections.

    Example:
        >>> recorder = RouteRecorder()
        >>> book = RouteRulebook(recorder.wrap_rules({"attention": rules.show_map}), recorder=recorder)
    """

    def __init__(self) -> None:
        self.sums: list[tuple[Node, Tensor]] = []
        self.projections: list[Projection] = []
        self.centred: set[int] = set()  # norms that subtract the mean
        self._batch: Axis | None = None

    def wrap_rules(self, book: Mapping[str, Rule]) -> dict[str, Rule]:
        """Return the same rules, with sums, linear layers and norms recorded."""
        recorders = {"add": self._record_sum, "linear": self._record_linear, "norm": self._record_norm}
        return {**book, **{kind: _RecordedRule(self, record, book.get(kind)) for kind, record in recorders.items()}}

    def _record_sum(self, call: Call, out: Tensor) -> OnOutput | None:
        return lambda node: self._add_sum(node, out.detach())

    def _record_linear(self, call: Call, out: Tensor) -> OnOutput | None:
        source = node_of(call.traced[0])
        if not source.mixed:
            return None
        attention = _attention_output(source)
        place = get_gradient_edge(out)
        weight = _matrix(call)
        return lambda node: self.projections.append(Projection(attention, source, node, place, weight))

    def _record_norm(self, call: Call, out: Tensor) -> OnOutput | None:
        return (lambda node: self.centred.add(node.seq)) if call.name == "layer_norm" else None

    def _add_sum(self, node: Node, value: Tensor) -> None:
        """Add a sum; of those before it, only residual ones are kept."""
        self.sums = [(n, t) for n, t in self.sums if n.residual]
        self.sums.append((node, value))

    def is_first_pass(self, call: Call) -> bool:
        """Return whether this is the first forward pass under these rules: checkpoints rerun it for gradients only."""
        self._batch = self._batch or call.batch
        return call.batch is self._batch


@dataclass(frozen=True)
class _RecordedRule:
    """A rule, or the plain derivative, whose operations are recorded.

    Attributes:
        recorder: whose first forward pass is recorded.
        record: returns what to call with the node of an operation's output, or ``None``.
        rule: the rule.
    """

    recorder: RouteRecorder
    record: Callable[[Call, Tensor], OnOutput | None]
    rule: Rule | None

    @property
    def name(self) -> str | None:
        return None if self.rule is None else self.rule.name

    @property
    def conserves(self) -> bool:
        return self.rule is not None and self.rule.conserves

    def accepts(self, call: Call) -> bool:
        return self.rule is None or self.rule.accepts(call)

    def apply(self, call: Call) -> RuleResult:
        found = RuleResult(call.run()) if self.rule is None else self.rule.apply(call)
        on_output = self.record(call, found.output) if self.recorder.is_first_pass(call) else None
        return (
            found if on_output is None else found.also(on_output, saved=(found.output,) if call.kind == "add" else ())
        )


def _attention_output(mixed: Node) -> Node:
    """Return the attention output that a tensor is, at most moved or scaled."""
    while mixed.kind not in ("mix", "attention"):
        mixed = mixed.parents[0]
    return mixed


def _matrix(call: Call) -> Tensor | None:
    """Return the weight of a linear layer, ``[inputs, outputs]``."""
    weight = linear_parts(call)[0]
    if weight is None or weight.dim() != 2 or call.name == "addmm":
        return weight if call.name == "addmm" else None
    found = terms(call, [call.traced[0], weight]) if call.name == "linear" else terms(call)
    if found is None:
        return None
    x, w = found[0] if call.name == "linear" or call.tensors[0] is call.traced[0] else found[0][::-1]
    rows, inputs, outputs = x[:-1], x[-1], found[1][-1:]
    return align(weight, w, inputs + outputs) if found[1][:-1] == rows and {*w} == {inputs, outputs} else None


@dataclass
class RouteRulebook(Rulebook):
    """A rulebook whose operations are recorded for routes."""

    recorder: RouteRecorder = field(default_factory=RouteRecorder)


@dataclass
class HeadRoutes:
    """The routes of one attention.

    Attributes:
        run: the run.
        record: the attention.
        residual: the residual addition around it.
        stream: the value of that sum, in the model's layout.
        weight: ``[heads, features of a head, features]``, the output projection.
        rows: ``[batch, tokens]``, the factor of each row after the projection.
        features: ``[batch, features]``, the factor of each feature after the projection.
    """

    run: Run
    record: AttentionRecord
    residual: Residual
    stream: Tensor
    weight: Tensor
    rows: Tensor
    features: Tensor

    def before(self) -> Tensor:
        """Return ``[batch, tokens, features]``: the stream that the attention is added to."""
        return token_vectors(self.run, self.residual.trunk)

    def after(self) -> Tensor:
        """Return ``[batch, tokens, features]``: the stream after the attention is added."""
        return token_vectors(self.run, self.residual.output, self.stream)

    def by_head(self, values: Tensor) -> Tensor:
        """Return ``[batch, heads, tokens, features of a head]`` of a tensor in the layout of the values.

        Values that several heads share are repeated.
        """
        record = self.record
        assert record.values is not None
        axes = node_of(record.values).token_axes
        keys = record.axes[record.key]
        at = next((i for i, dim in enumerate(axes) if dim == keys), values.dim() - 2)
        own = [i for i, dim in enumerate(axes) if i != at and record.batch not in dim and dim not in record.axes]
        found = arrange(precise(values), axes, record.batch, (at, [values.dim() - 1, *own][-1]))
        found = restored(found, 2, record.key_order)
        return found.repeat_interleave(record.shape[0] // found.shape[1], 1)

    def attention(self, rows: slice) -> Callable[[slice], Tensor]:
        """Return some rows of the map, in chunks.

        Args:
            rows: the rows.

        Returns:
            A function from a chunk, counted from the first of the rows, to ``[batch, heads, chunk, tokens]``. Of a
            fused attention only the chunk is computed.
        """
        shown = self.record.shown
        if shown is None:
            whole = self.record.map()[:, :, rows]
            return lambda chunk: whole[:, :, chunk]
        query = shown.query[..., rows, :]
        mask = _mask_rows(shown.mask, rows)
        if shown.causal:
            shape = query.shape[-2], shown.key.shape[-2]
            mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril(rows.start)
        selected = replace(shown, query=query, mask=mask, causal=False)

        def map_chunk(chunk: slice) -> Tensor:
            part = replace(selected, query=selected.query[..., chunk, :], mask=_mask_rows(selected.mask, chunk))
            return self.record.arrange(part.map())

        return map_chunk


def _mask_rows(mask: Tensor | None, rows: slice) -> Tensor | None:
    """Return some rows of a mask; a mask that is the same for all rows stays as it is."""
    return mask if mask is None or mask.dim() < 2 or mask.shape[-2] == 1 else mask[..., rows, :]


def routes(run: Run, recorder: RouteRecorder, method: str) -> list[HeadRoutes]:
    """Return the routes of each attention, first layer first; a model without them raises an error.

    Args:
        run: a run under the rules of ``recorder``.
        recorder: the recorder.
        method: the name of the method, for errors.
    """
    around = attention_residuals(run, method)
    sums = {node.seq: value for node, value in recorder.sums}
    return [
        _routes(run, recorder, method, record, residual, sums[node_of(residual.output).seq])
        for record, residual in zip(run.trace.attentions, around, strict=True)
    ]


def _routes(
    run: Run, recorder: RouteRecorder, method: str, record: AttentionRecord, residual: Residual, stream: Tensor
) -> HeadRoutes:
    assert record.output is not None
    output = node_of(record.output)
    branch = node_of(residual.branch)
    found = [p for p in recorder.projections if p.attention is output and _derives_from(branch, p.output)]
    read = found[0].input if found else branch
    moved = not found or {node.kind for node in _path(read, output)} <= {"structural", "identity"}
    weight = found[0].weight if found else torch.eye(stream.shape[-1], dtype=stream.dtype, device=stream.device)
    by_head = read.mixed and moved and _atoms(read.axes[-1]) == _features(record)
    if len(found) > 1 or weight is None or not by_head:
        raise ModelError(
            f"'{method}' follows each head through one linear layer to the residual stream, but what this model's "
            "attention has read gets there in another way (a gate, several layers, a product that mixes heads with "
            "tokens). Use a method that reads attention maps alone (generic-attention, rollout)."
        )
    start = (found[0].output, found[0].place) if found else (output, edge_of(record.output))
    rows, features = _scales_after(run, recorder, method, residual, *start)
    heads = precise(weight.detach()).unflatten(0, (record.shape[0], -1))
    return HeadRoutes(run, record, residual, stream, heads, rows, features)


def _features(record: AttentionRecord) -> list[Axis]:
    """Return the feature axis of an attention's output as a row: one head after the other."""
    assert record.output is not None
    heads = [dim for d, dim in enumerate(record.axes) if d not in (record.query, record.key)]
    own = [dim for dim in node_of(record.output).axes if dim not in record.axes]
    return [atom for dim in [*heads, *own] for atom in _atoms(dim) if atom is not record.batch]


def _atoms(dim: Dim) -> list[Axis]:
    """Return the parts of an axis with more than one entry: a batch of one may be part of any axis."""
    return [atom for atom in dim if atom.size > 1]


def _derives_from(end: Node, start: Node) -> bool:
    return end is start or end.between(start) is not None


def _scales_after(
    run: Run, recorder: RouteRecorder, method: str, residual: Residual, start: Node, place: Tensor | GradientEdge
) -> tuple[Tensor, Tensor]:
    """Return the factors of rows ``[batch, tokens]`` and of features ``[batch, features]`` from there to the sum."""
    like = token_vectors(run, residual.trunk)
    passed = _path(node_of(residual.branch), start)
    kinds = {node.kind for node in passed}
    if kinds - PRESERVING - SCALING or any(node.seq in recorder.centred for node in passed):
        raise ModelError(
            "Behind the output projection of this model's attention there is more than a scaling "
            f"({', '.join(sorted(kinds - PRESERVING - SCALING)) or 'a LayerNorm'}), through which '{method}' does not "
            "follow each head. Use a method that reads attention maps alone (generic-attention, rollout)."
        )
    if not kinds & SCALING:
        return torch.ones_like(like[..., 0]), torch.ones_like(like[:, 0])
    branch = residual.branch
    seed = torch.ones(branch.shape, dtype=branch.dtype, device=like.device)
    ends: Any = [edge_of(branch)], [place]  # edges of the graph, which torch's annotations do not have
    (found,) = torch.autograd.grad(ends[0], ends[1], [seed], retain_graph=True)
    both = token_vectors(run, attach(found, start))
    rows = both.abs().sum(-1)
    return rows, both[:, 0] / rows[:, :1]


def _path(end: Node, start: Node) -> list[Node]:
    """Return the nodes between one tensor and another that a gradient passes, without the latter."""
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
