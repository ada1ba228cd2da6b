"""Where the blocks of a model begin and end: the residual additions around its attentions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import InputError
from ..tracing.axes import Dim
from ..tracing.node import Node
from ..tracing.residuals import Residual
from ..tracing.tensor_info import Source, node_of
from ..tracing.tracer import Trace
from .boundaries import Boundary


@dataclass(frozen=True)
class BlockStructure:
    """The blocks of a model, as far as a target depends on them.

    Attributes:
        boundaries: what enters each block, and what leaves the last one.
        aside: embeddings that join a stream on its way: of the words of LLaVA, among patches that were encoded; of
            positions that are counted from a mask.
        around: whether an input that enters the blocks also goes round all of them (through convolutions, by sampling).
    """

    boundaries: list[Boundary]
    aside: list[Boundary]
    around: bool

    @staticmethod
    def of(trace: Trace, output: Node) -> BlockStructure:
        """Return the blocks of a traced forward pass.

        Args:
            trace: what happened.
            output: what the target is read from.
        """
        boundaries = [Boundary(t, node_of(t)) for t in _boundaries(trace)]
        aside = _aside(trace, output, boundaries)
        around = _goes_around(trace, output, boundaries, aside)
        if around:  # what enters the blocks is not all there is
            reached = output.ancestors()
            named = [s for s in trace.sources if s.name and node_of(s.tensor).seq in reached]
            texts = [s for s in named[1:] if s.embedded and s.tensor.dim() == 3]
            boundaries = [Boundary(s.tensor, node_of(s.tensor)) for s in named[:1]] or boundaries
            aside = [Boundary(s.tensor, node_of(s.tensor)) for s in texts]
        return BlockStructure(boundaries, aside, around)


def first_keys(trace: Trace) -> Dim:
    """Return the axis that the first attention reads; without attention, that of the embedded input."""
    if not trace.attentions:
        rows = [node_of(s.tensor).axes for s in trace.sources if s.name and s.embedded and s.tensor.dim() == 3]
        return rows[0][1] if rows else ()
    record = trace.attentions[0]
    return record.axes[record.key]


def first_source(trace: Trace, embedded: bool | None = None) -> Source:
    """Return the first input that carries relevance, embedded or raw (``None``: either)."""
    for source in trace.sources:
        if source.name and (embedded is None or source.embedded == embedded):
            return source
    if embedded is not False and any(source.embedded for source in trace.sources):
        raise InputError(
            "Relevance has nowhere to go: the model looks up embeddings of numbers that it computes from its input, "
            "not of the input as it is given. Compute these numbers beforehand and give them to the model."
        )
    kinds = {True: "embedding of an integer input", False: "floating-point input"}
    kind = kinds[embedded] if embedded is not None else " and no ".join(kinds.values())
    raise InputError(
        f"Relevance has nowhere to go: no {kind} was seen. Give the model its float inputs "
        "(for example inputs_embeds or pixel_values), or choose another `at`."
    )


def trunk_of(trace: Trace, residual: Residual) -> Tensor:
    """Return what a block begins from; where queries begin from nothing, what the model has learned that they are."""
    node = node_of(residual.trunk)
    learned = [r.trunk for r in trace.residuals if node.learned and node_of(r.trunk) is node.root]
    return [*learned, residual.trunk][0]


def around_attentions(trace: Trace) -> list[Residual]:
    """Return the residual addition around each attention, in order; not those around blocks that have some already.

    A forecast that is subtracted from what it was computed from (a loss) is such a sum: no block begins there.
    """
    found: list[Residual] = []
    done: set[int] = set()
    for residual in trace.residuals:
        if set(residual.attentions) - done:
            done |= set(residual.attentions)
            found.append(residual)
    return found


def _boundaries(trace: Trace) -> list[Tensor]:
    """Return the trunk of each residual addition around an attention, in order, and the last one's output."""
    tensors = [trunk_of(trace, residual) for residual in around_attentions(trace)]
    entry = trace.entry
    if tensors and node_of(tensors[0]).learned and entry is not None and first_keys(trace) in node_of(entry).token_axes:
        tensors.insert(0, entry)  # the model's own tokens look at what it reads (Perceiver)
    if not tensors:
        return _beginning(trace)
    end = _end(trace)
    post_norm = len(tensors) > 1 and _is_normed(node_of(tensors[-1])) and end.normed is not None
    return [*tensors, end.normed if post_norm and end.normed is not None else end.output]


def _is_normed(node: Node) -> bool:
    """Return whether a tensor is the output of a norm, at most with its weight and bias apart."""
    while node.kind in ("scale", "shift-by-constant") and len(node.flows) == 1:
        node = node.flows[0]
    return node.kind in ("norm", "normalise")


def _beginning(trace: Trace) -> list[Tensor]:
    """Return where a model begins that has no residual addition around an attention."""
    if trace.entry is not None:
        return [trace.entry]
    tokens = first_keys(trace)
    trunks = [r.trunk for r in trace.residuals if tokens and tokens in node_of(r.trunk).token_axes]
    return [*trunks, *(source.tensor for source in trace.sources if source.name)][:1]


def _end(trace: Trace) -> Residual:
    """Return the last residual addition along the tokens that the last attention wrote.

    Where a branch is computed for some tokens of the stream alone, either these or all tokens go on from there.
    """
    last = around_attentions(trace)[-1]
    sizes = {last.output.numel()} if last.selection is None else {last.output.numel(), last.trunk.numel()}
    return next(r for r in reversed(trace.residuals) if r.output.numel() in sizes)  # in any layout


def _aside(trace: Trace, output: Node, boundaries: list[Boundary]) -> list[Boundary]:
    """Return embedded inputs that are part of the target, but not of what enters any stream's first block."""
    sources = {node_of(source.tensor).seq: source for source in trace.sources}
    first = [b.node for b in boundaries[:1] if b.tensor is trace.entry]  # what latents read (Perceiver)
    begun = {seq for node in first for seq in node.ancestors() & set(sources)}
    for residual in around_attentions(trace) if len(sources) > 1 else ():
        if len(begun) < len(sources):
            behind = node_of(residual.trunk).ancestors() & set(sources)
            begun |= behind if not begun & behind else set()
    left = output.ancestors() & set(sources) - begun if begun else set()
    joining = [sources[seq] for seq in sorted(left)]
    return [Boundary(s.tensor, node_of(s.tensor)) for s in joining if s.embedded and s.tensor.dim() == 3]


def _goes_around(trace: Trace, output: Node, boundaries: list[Boundary], aside: list[Boundary]) -> bool:
    """Return whether an input that enters the blocks also reaches the target past all of them."""
    trunks: list[Node] = []  # that begin a stream
    followed: set[int] = set()  # those, and what follows them
    for node in [node_of(r.trunk) for r in around_attentions(trace)]:
        if not node.descends(followed):
            trunks.append(node)
        followed.add(node.seq)
    begun = [*trunks, *(b.node for b in aside)] or [b.node for b in boundaries]
    if not trace.attentions or not begun:
        return False
    if any(_beside_residuals(trace) & trunk.ancestors() for trunk in trunks):  # a block before the first one known
        return True
    reached = output.reachable({node.seq for node in begun})
    named = {node_of(source.tensor).seq for source in trace.sources if source.name}
    left = named & reached - {node.seq for node in begun}
    return bool(left) and any(left & node.ancestors() for node in begun)


def _beside_residuals(trace: Trace) -> set[int]:
    """Return, by ``seq``, what attentions made that are part of no residual branch."""
    known = {i for residual in trace.residuals for i in residual.attentions}
    outputs = [record.output for i, record in enumerate(trace.attentions) if i not in known]
    return {node_of(output).seq for output in outputs if output is not None}
