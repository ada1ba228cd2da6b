"""One traced forward pass of a model with one target, and the backward passes that a method asks of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..propagation.ledger import Ledger
from ..propagation.rulebook import Rulebook
from ..targets.seed import Seed
from ..targets.specs import Target
from ..tracing.autograd_graph import sent_back
from ..tracing.axes import Axes, Dim, size_of
from ..tracing.reductions import per_token, precise, token_dims
from ..tracing.residuals import Residual
from ..tracing.tensor_info import Source, node_of
from ..tracing.tracer import Trace
from .block_structure import BlockStructure, first_keys, first_source, trunk_of
from .boundaries import BackwardContext, BackwardRecorder, BatchedResult, Boundary, HeadRelevance
from .head_axes import by_head, nodes_behind
from .padding import over
from .rerun import Rerun

if TYPE_CHECKING:
    from .forward import Forward


class Carry(Enum):
    """What a backward pass carries: gradients, or relevance by the rules of a rulebook with a phase."""

    GRADIENT = "gradient"
    RELEVANCE = "relevance"


class TargetGroup:
    """What the runs of one forward pass share, one for each target.

    Attributes:
        places: a grid, and ``[batch, patches]``: where each patch went, if the model puts them in its own order.
    """

    def __init__(self) -> None:
        self.places: tuple[tuple[int, int], Tensor] | None = None
        self._results: dict[int, BatchedResult] = {}  # by the number of a run

    def locate(self, places: tuple[tuple[int, int], Tensor] | None) -> None:
        """Set where each patch went."""
        self.places = places

    def bring(self, run: Run, result: BatchedResult) -> None:
        """Keep what a backward pass for several targets brought for one of them."""
        self._results[run.number] = result

    def take(self, run: Run) -> BatchedResult | None:
        """Return what was brought for a run, once."""
        return self._results.pop(run.number, None)

    def brought(self, run: Run) -> bool:
        """Return whether something was brought for a run."""
        return run.number in self._results


@dataclass(frozen=True, eq=False)
class Run:
    """A traced forward pass and one target: what a method reads its scores from.

    Attributes:
        forward: the model with its inputs.
        trace: what happened.
        seed: where backward passes start.
        rulebook: the rules that operations follow.
        target: what it explains, as the user gave it.
        group: what it shares with the other runs of the same forward pass.
        number: its place among them.
        followers: the runs to the targets after this one.
        structure: the model's blocks.
        ledger: where relevance that is absorbed or created is entered.
        reused: whether another method reads the same forward pass after this one.
        watched: what else is recorded in a backward pass.
    """

    forward: Forward
    trace: Trace
    seed: Seed
    rulebook: Rulebook
    target: Target
    group: TargetGroup
    number: int
    followers: tuple[Run, ...]
    structure: BlockStructure
    ledger: Ledger | None
    reused: bool = False
    watched: list[BackwardRecorder] = field(default_factory=list)

    @staticmethod
    def each(
        forward: Forward,
        trace: Trace,
        rulebook: Rulebook,
        seeds: Sequence[tuple[Seed, Target]],
        reused: bool = False,
    ) -> list[Run]:
        """Return the runs of one forward pass; see the attributes."""
        group = TargetGroup()
        runs: tuple[Run, ...] = ()
        for number in reversed(range(len(seeds))):
            seed, target = seeds[number]
            structure = BlockStructure.of(trace, node_of(seed.output))
            ledger = Ledger(trace.batch) if rulebook.phase is not None and rulebook.books else trace.ledger
            run = Run(forward, trace, seed, rulebook, target, group, number, runs, structure, ledger, reused)
            runs = (run, *runs)
        return list(runs)

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.forward.model

    @property
    def boundaries(self) -> list[Boundary]:
        """What enters each block, and what leaves the last one."""
        return self.structure.boundaries

    @property
    def aside(self) -> list[Boundary]:
        """Embeddings that join a stream on its way."""
        return self.structure.aside

    @property
    def around(self) -> bool:
        """Whether an input that enters the blocks also goes round all of them."""
        return self.structure.around

    # -- the same forward pass again ---------------------------------------------------------------------------

    def retrace(self, values: Mapping[int, Tensor]) -> Run:
        """Trace the same forward pass to the same target, with other values in place of some tensors.

        Args:
            values: by the ``seq`` of the nodes of the tensors that they replace.
        """
        return self.forward.retrace(self, values)

    def rerun(self, values: Mapping[int, Tensor], times: int = 1, *, gradients: bool = True) -> Rerun:
        """Run the model with other values, where only the target and its gradients at these values are asked.

        Args:
            values: by the ``seq`` of the nodes of the tensors that they replace.
            times: how many copies of the batch there are; only of one value, and a target that is no function.
            gradients: whether gradients will be asked for; if not, no graph is kept where that is possible.
        """
        return self.forward.rerun(self, values, times, gradients=gradients)

    # -- where relevance is read ------------------------------------------------------------------------------

    def position(self, at: str) -> Tensor:
        """The tensor at which input-level methods read: see ``at`` in :func:`whence.explain`."""
        if at == "position" and self.boundaries:
            self.check_whole()
            return self.boundaries[0].tensor
        return self.source(embedded=None if at == "position" else at == "token").tensor

    def check_whole(self) -> None:
        """Refuse blocks in which windows are samples of a larger batch: where a token came from is not followed."""
        axes = self.boundaries[0].node.token_axes if self.boundaries else ()
        given = [atom for s in self.trace.sources for dim in node_of(s.tensor).axes for atom in dim]  # channels are
        batch, keys = self.trace.batch, self.keys
        cut = [atom for dim in axes if batch in dim for atom in dim if atom is not batch and atom not in given]
        if cut and keys in axes and not any(atom in given for atom in keys):
            raise ModelError(
                f"The model cuts its tokens into {size_of(tuple(cut))} windows and runs whole blocks inside each, so "
                "that which token is which is not known there. Read where tokens enter: at='token', or at='pixel' for "
                "floating-point inputs (conservative-lrp, gradient-x-input and other input-level methods)."
            )

    def source(self, embedded: bool | None) -> Source:
        """Return the first input that carries relevance, embedded or raw."""
        return first_source(self.trace, embedded)

    def trunk(self, residual: Residual) -> Tensor:
        """Return what a block begins from."""
        return trunk_of(self.trace, residual)

    # -- backward passes -------------------------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        """Whether the same forward pass will be read again, for another target or by another method."""
        return bool(self.followers) or self.reused

    def backward(
        self,
        tensors: Sequence[Tensor],
        *,
        carry: Carry = Carry.GRADIENT,
        weights: Tensor | None = None,
        keep: bool = False,
    ) -> list[Tensor]:
        """Run a backward pass from the target and return what arrives at each tensor: gradients, or relevance.

        Args:
            tensors: where to read.
            carry: gradients or relevance.
            weights: what to start from in place of the weights of the seed.
            keep: whether another backward pass will follow.
        """
        keep = keep or self.more
        if self.rulebook.phase is not None:
            self.rulebook.phase.carry(carry is Carry.RELEVANCE, keep, self.ledger)
        asked, tensors = len(tensors), self.ends(tensors)
        before = [(b, b.passes) for b in (*self.boundaries, *self.aside)]
        found = self.send(tensors, weights, keep)
        for b, passes in before:  # at its end autograd calls no hook of an overwritten tensor
            arrived = next((g for t, g in zip(tensors, found, strict=True) if t is b.tensor), None)
            if arrived is not None and b.passes == passes:
                b.take(self.way(), arrived)
        device = self.seed.output.device
        filled = [torch.zeros_like(t, device=device) if g is None else g for t, g in zip(tensors, found, strict=True)]
        return filled[:asked]

    def send(self, tensors: Sequence[Tensor], weights: Tensor | None, keep: bool) -> list[Tensor | None]:
        """Return what arrives at each tensor; boundaries keep what passes them."""
        start, own = self.seed.start
        sent = (own if weights is None else weights).to(start.dtype)
        hooks = [b.watch(self.way()) for b in self.passages()]
        for layers in (self.trace, self.rulebook.phase):
            if layers is not None:
                layers.sparse_rows.restart()
        try:
            return sent_back(start, sent, tensors, keep)
        finally:
            for hook in hooks:
                hook.remove()

    def ends(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Where a backward ends that is read at some tensors."""
        return [*tensors, *(b.tensor for b in self.aside if not any(b.tensor is t for t in tensors))]

    def way(self) -> BackwardContext:
        """What a backward carries now."""
        phase = self.rulebook.phase
        return BackwardContext(phase is None or not phase.relevance, self.trace.batch, self.tokens)

    def passages(self) -> list[BackwardRecorder]:
        """Where what passes is written down."""
        return [*self.boundaries, *self.aside, *self.watched]

    def watch(self, *recorders: BackwardRecorder) -> None:
        """Let recorders see the backward passes that follow."""
        self.watched.extend(recorders)

    def watch_heads(self) -> None:
        """Have the backwards that follow write down what each head carried."""
        if not self.trace.is_split:  # each process has heads of its own
            self.watch(*(HeadRelevance(record) for record in self.trace.attentions))

    def heads(self) -> Tensor | None:
        """``[batch, attentions, heads]``: what each carried; ``None`` if that is not known, or their number differs."""
        watched = [w for w in self.watched if isinstance(w, HeadRelevance)]
        if any(w.relevance is None and not w.known for w in watched):
            return None
        carried = [w.relevance for w in watched if w.relevance is not None]
        if not self.windowed and len(carried) == len(watched) and len({t.shape for t in carried}) == 1:
            return torch.stack(carried, 1).sum(-1)
        nothing = precise(self.seed.logits).new_zeros(self.trace.batch.size, 1)
        nodes = nodes_behind([node_of(self.seed.output)]) if self.windowed else None
        found = []
        for w in watched:
            own = nothing.expand(-1, w.record.shape[0]) if w.relevance is None else w.relevance.sum(-1)
            found.append(own if nodes is None else by_head(own, w.record, nodes))
        known = [heads for heads in found if heads is not None]
        alike = len(known) == len(found) and len({t.shape for t in known}) == 1
        return torch.stack(known, 1) if alike else None

    def settle(
        self, gradient: bool, end: Tensor | None = None, entries: Sequence[Tensor] = (), sent: Tensor | None = None
    ) -> Tensor | None:
        """Relevance at the block boundaries, from what passed there; with it the ledger is closed.

        Of several streams, blocks do not follow one another: the books are then of the model as a whole.

        Args:
            gradient: whether the last backward carried gradients (relevance is then gradient x value).
            end: the tensor at which it ended.
            entries: what enters the first block of each stream, if there are several.
            sent: the relevance that was sent back, if it is not that of the seed.

        Returns:
            Relevance entering each block, ``[batch, blocks, tokens]``.
        """
        met = [(b, b.relevance) for b in self.boundaries if b.relevance is not None]
        joined = [(b, b.relevance) for b in self.aside if b.relevance is not None]
        if self.ledger is not None:
            if gradient and self.seed.bias is not None:
                self.ledger.absorb(node_of(self.seed.output).seq, "bias", "linear", self.seed.bias)
            weights = self.seed.weights if sent is None else sent
            total = self.seed.value if gradient else weights.reshape(len(weights), -1).sum(1)
            passed = self._passed([b for b, _ in met])
            sums = _sums([relevance for b, relevance in met if any(b is x for x in passed)])
            marks = [b.node.seq for b in passed]
            before = set(range(node_of(end).seq + 1)) if end is not None else set()
            if len(entries) > 1:
                into = [(b, r) for b, r in [*met, *joined] if any(b.tensor is t for t in entries)]
                for b, relevance in joined:
                    if not any(b is x for x, _ in into):
                        self.ledger.absorb(b.node.seq, "constant", "embedding", relevance.sum(1))
                sums = torch.stack([relevance.sum(1) for _, relevance in into]).sum(0)[:, None] if into else None
                marks = [min(b.node.seq for b, _ in into)] if into else []
                before = {seq for t in entries for seq in node_of(t).ancestors()}
            ends = {node_of(t).seq for t in (entries if len(entries) > 1 else (end,)) if t is not None}
            self.ledger.close(total, sums, marks, before, ends)
        last = next(reversed(self.boundaries), None)
        missed = last is not None and last.relevance is None and last.node.seq in self.reached  # by a custom function
        layers = [relevance for _, relevance in (met if missed else met[:-1])]
        return torch.stack(layers, 1) if len({t.shape for t in layers}) == 1 else None

    def _passed(self, boundaries: list[Boundary]) -> list[Boundary]:
        """The first boundary, and those that all relevance passes: a head may read what several blocks wrote (DPT)."""
        edges = node_of(self.seed.output).edges()
        over = [0] * (node_of(self.seed.output).seq + 2)  # how many edges go past an operation, by differences
        for new, old in edges:
            over[old + 1] += 1
            over[new] -= 1
        passing = list(itertools.accumulate(over))
        return [b for b in boundaries if b is boundaries[0] or not passing[b.node.seq]]

    def forget(self) -> None:
        """Leave out of the books what was sent back to learn about the model, not to explain it."""
        if self.ledger is not None:
            self.ledger.clear()

    # -- tokens ----------------------------------------------------------------------------------------------

    @cached_property
    def reached(self) -> set[int]:
        """The tensors (by ``seq``) that relevance can reach from the target."""
        return node_of(self.seed.output).reachable()

    @cached_property
    def tokens(self) -> Dim:
        """The token axis: what the first attention reads; of windows or merged tokens, what enters its block."""
        keys = self.keys
        if not self.windowed:
            return keys
        record = self.trace.attentions[0]
        axes = self.boundaries[0].node.token_axes
        features = record.reads.axes[-1] if record.reads is not None and record.reads.axes[-1] in axes else axes[-1]
        own = [dim for dim in axes if self.trace.batch not in dim]
        if len(own) == 3 and size_of(own[1] + own[2]) == size_of(keys) != size_of(own[0] + own[1]):
            return own[1] + own[2]  # features first, then rows and columns (CoAtNet)
        return tuple(atom for dim in axes if dim != features for atom in dim if atom is not self.trace.batch)

    @cached_property
    def windowed(self) -> bool:
        """Whether the first attention reads other tokens than those that enter its block: windows, merged tokens."""
        if len(self.boundaries) < 2:
            return False
        keys, node = self.keys, self.boundaries[0].node
        own = [dim for dim in node.token_axes if dim != (self.trace.batch,)]
        return keys not in own and token_dims(node.axes, keys) is None

    @property
    def constant_keys(self) -> int:
        """How many keys, the same for every input, the first attention has beside those of tokens (a tuned prefix)."""
        parts = self.keys[0].parts if len(self.keys) == 1 else ()
        sources = [part.source for part in parts if part.source is not None]
        own = self.boundaries[0].node.token_axes if self.boundaries else ()
        return sum(part.length for part in parts if part.source is None) if sources and sources[0] in own else 0

    @cached_property
    def keys(self) -> Dim:
        """The axis that the first attention reads; without attention, that of the embedded input."""
        return first_keys(self.trace)

    @property
    def given(self) -> Tensor | None:
        """The padding mask that the user gave, true at padding; of several answers, that of the one explained."""
        choice = next((record.choice for record in self.trace.attentions if record.choice is not None), None)
        mask = self.forward.kwargs.get("attention_mask")
        if choice is not None and isinstance(mask, Tensor) and mask.dim() == 3:
            return mask[torch.arange(len(mask)), choice[1]] == 0
        return self.forward.mask

    def per_token(self, relevance: Tensor, axes: Axes) -> Tensor:
        """Sum a tensor over its features: ``[batch, tokens]``."""
        return per_token(relevance, axes, self.trace.batch, self.tokens)

    @property
    def mask(self) -> Tensor | None:
        """``[batch, tokens]``, true where a token of the main stream is padding; ``None`` if there is no such mask."""
        return self.padding(self.tokens)

    def padding(self, tokens: Dim) -> Tensor | None:
        """The user's mask, if it is of these tokens: not of a picture's, where there is a text; not of a decoder's."""
        named = [(source.name, source.tensor) for source in self.trace.sources if source.name]
        own = [t for name, t in named if name in ("input_ids", "inputs_embeds")]
        if self.given is None:
            return None
        atoms = [atom for t in own or [t for _, t in named] for dim in node_of(t).axes[1:] for atom in dim]
        mask = over(self.given, tokens, atoms)  # with what the model has put beside these tokens
        if not own:
            return mask if tokens == self.tokens else None
        second = [t for name, t in named if name.endswith("_input_ids")]  # another text, perhaps of the same length
        if any(atom in dim for t in second for dim in node_of(t).axes[1:] for atom in tokens):
            return None
        apart = any(name.startswith("decoder") or t.shape[:2] != self.given.shape for name, t in named)
        return mask if mask is not self.given or any(atom in atoms for atom in tokens) or not apart else None

    def absent(self, scores: Tensor, tokens: Dim) -> Tensor | None:
        """True where scores ``[batch, positions]`` are of padding: of tokens, or of the user's own input alone."""
        mask = self.padding(tokens)
        if mask is not None and mask.shape != scores.shape:
            mask = self.given
        return None if mask is None or mask.shape != scores.shape else mask


def _sums(relevances: list[Tensor]) -> Tensor | None:
    """Return the sum of the relevance at each boundary, ``[batch, boundaries]``; ``None`` without boundaries."""
    if not relevances:
        return None
    if len({t.shape for t in relevances}) == 1:
        return torch.stack(relevances, 1).sum(-1)
    return torch.stack([relevance.sum(1) for relevance in relevances], 1)
