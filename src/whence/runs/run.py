"""One traced forward of a model, and the backwards that a method asks of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import InputError, ModelError
from ..propagation.ledger import Ledger
from ..propagation.rulebook import Rulebook
from ..targets.seed import Seed
from ..targets.specs import Target
from ..tracing.autograd_graph import sent_back
from ..tracing.axes import Axes, Dim, size_of
from ..tracing.node import Node, Source, node_of
from ..tracing.reductions import per_token, precise, token_dims
from ..tracing.residuals import Residual
from ..tracing.tracer import Trace
from .boundaries import BackwardContext, BackwardRecorder, BatchedResult, Boundary, HeadRelevance
from .head_axes import by_head, nodes_behind
from .padding import over
from .rerun import Rerun

if TYPE_CHECKING:
    from .forward import Forward


class Run:
    """A traced forward: what a method reads its scores from.

    Attributes:
        model: what was run.
        trace: what happened.
        seed: where backwards start.
        given: the padding mask that the user gave, true at padding, or ``None``.
        boundaries: what enters each block, and what leaves the last one.
        aside: embeddings that join a stream on its way: of the words of LLaVA, among patches that were encoded; of
            positions that are counted from a mask.
        around: whether an input that enters the blocks also goes round all of them (through convolutions, by sampling).
        watched: what else is written down in a backward.
        target: what it explains, as the user gave it.
        places: a grid, and ``[batch, patches]``: where each patch went, if the model puts them in its own order.
        followers: the runs to the targets after this one, of the same forward, in their order.
        brought: what a backward together with theirs brought.
        instead: weights to send back in place of the seed's: those of several targets at once.
    """

    def __init__(
        self,
        model: nn.Module,
        trace: Trace,
        seed: Seed,
        rulebook: Rulebook,
        mask: Tensor | None,
        forward: Forward | None = None,
        target: Target = None,
        followers: Sequence[Run] = (),
    ) -> None:
        self.model = model
        self.trace = trace
        self.seed = seed
        self.rulebook = rulebook
        self.given = mask
        self.boundaries = self._boundaries()
        self.aside = self._aside()
        self.around = self._around()
        if self.around:  # what enters the blocks is not all there is
            main, reached = self.source(None), node_of(seed.output).ancestors()
            texts = [s for s in trace.sources if s.name and s.embedded and s is not main and s.tensor.dim() == 3]
            self.boundaries, self.aside = (
                [Boundary(s.tensor, node_of(s.tensor)) for s in some if node_of(s.tensor).seq in reached]
                for some in ([main], texts)
            )
        self.watched: list[BackwardRecorder] = []
        self.target = target
        self._forward = forward
        self.places: tuple[tuple[int, int], Tensor] | None = None
        self.followers = list(followers)
        self.brought: BatchedResult | None = None
        self.instead: Tensor | None = None
        self.ledger = Ledger(trace.batch) if rulebook.phase is not None and rulebook.books else trace.ledger

    # -- the same forward pass again ---------------------------------------------------------------------------

    def retrace(self, values: Mapping[int, Tensor]) -> Run:
        """Trace the same forward pass to the same target, with other values in place of some tensors.

        Args:
            values: by the ``seq`` of the nodes of the tensors that they replace.
        """
        return self._again().retrace(self, values)

    def rerun(self, values: Mapping[int, Tensor], times: int = 1) -> Rerun:
        """Run the model with other values, where only the target and its gradients at these values are asked.

        Args:
            values: by the ``seq`` of the nodes of the tensors that they replace.
            times: how many copies of the batch there are; only of one value, and a target that is no function.
        """
        return self._again().rerun(self, values, times)

    def _again(self) -> Forward:
        if self._forward is None:
            raise ModelError("This run was not made by whence.explain, so it cannot be repeated.")
        return self._forward

    # -- structure -------------------------------------------------------------------------------------------

    def _boundaries(self) -> list[Boundary]:
        """The trunk of each residual addition around an attention, in order, and the last one's output."""
        tensors: list[Tensor] = []
        done: set[int] = set()
        for residual in self.trace.residuals:
            if set(residual.attentions) - done:
                done |= set(residual.attentions)
                tensors.append(self.trunk(residual))
        entry = self.trace.entry
        if tensors and node_of(tensors[0]).learned and entry is not None and self.keys() in node_of(entry).token_axes:
            tensors.insert(0, entry)  # the model's own tokens look at what it reads (Perceiver)
        if tensors:
            end = self._end()
            post_norm = len(tensors) > 1 and node_of(tensors[-1]).kind == "norm" and end.normed is not None
            tensors.append(end.normed if post_norm and end.normed is not None else end.output)
        return [Boundary(t, node_of(t)) for t in tensors or self._beginning()]

    def _beginning(self) -> list[Tensor]:
        """Where a model begins that has no residual addition around an attention."""
        if self.trace.entry is not None:
            return [self.trace.entry]
        tokens = self.keys()
        trunks = [r.trunk for r in self.trace.residuals if tokens and tokens in node_of(r.trunk).token_axes]
        return [*trunks, *(source.tensor for source in self.trace.sources if source.name)][:1]

    def _aside(self) -> list[Boundary]:
        """Embedded inputs that are part of the target, but not of what enters any stream's first block."""
        sources = {node_of(source.tensor).seq: source for source in self.trace.sources}
        begun: set[int] = set()
        for residual in self.trace.residuals if len(sources) > 1 else ():
            if residual.attentions and len(begun) < len(sources):
                behind = node_of(residual.trunk).ancestors() & set(sources)
                begun |= behind if not begun & behind else set()
        left = node_of(self.seed.output).ancestors() & set(sources) - begun if begun else set()
        joining = [sources[seq] for seq in sorted(left)]
        return [Boundary(s.tensor, node_of(s.tensor)) for s in joining if s.embedded and s.tensor.dim() == 3]

    def _around(self) -> bool:
        trunks: list[Node] = []  # that begin a stream
        followed: set[int] = set()  # those, and what follows them
        for node in [node_of(r.trunk) for r in self.trace.residuals if r.attentions]:
            if not node.descends(followed):
                trunks.append(node)
            followed.add(node.seq)
        begun = [*trunks, *(b.node for b in self.aside)] or [b.node for b in self.boundaries]
        if not self.trace.attentions or not begun:
            return False
        if any(self._beside_residuals() & trunk.ancestors() for trunk in trunks):  # a block before the first one known
            return True
        reached = node_of(self.seed.output).reachable({node.seq for node in begun})
        named = {node_of(source.tensor).seq for source in self.trace.sources if source.name}
        left = named & reached - {node.seq for node in begun}
        return bool(left) and any(left & node.ancestors() for node in begun)

    def _beside_residuals(self) -> set[int]:
        """Return, by ``seq``, what attentions made that are part of no residual branch."""
        known = {i for residual in self.trace.residuals for i in residual.attentions}
        outputs = [record.output for i, record in enumerate(self.trace.attentions) if i not in known]
        return {node_of(output).seq for output in outputs if output is not None}

    def trunk(self, residual: Residual) -> Tensor:
        """What a block begins from; where queries begin from nothing, what the model has learned that they are."""
        node = node_of(residual.trunk)
        learned = [r.trunk for r in self.trace.residuals if node.learned and node_of(r.trunk) is node.root]
        return [*learned, residual.trunk][0]

    def _end(self) -> Residual:
        """The last residual addition along the tokens that the last attention wrote."""
        last = next(r for r in reversed(self.trace.residuals) if r.attentions)
        shape = last.output.shape
        return next(r for r in reversed(self.trace.residuals) if r.output.shape == shape)

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
        batch, keys = self.trace.batch, self.keys()
        cut = [atom for dim in axes if batch in dim for atom in dim if atom is not batch and atom not in given]
        if cut and keys in axes and not any(atom in given for atom in keys):
            raise ModelError(
                f"The model cuts its tokens into {size_of(tuple(cut))} windows and runs whole blocks inside each, so "
                "that which token is which is not known there. Read where tokens enter: at='token', or at='pixel' for "
                "floating-point inputs (conservative-lrp, gradient-x-input and other input-level methods)."
            )

    def source(self, embedded: bool | None) -> Source:
        """The first input that carries relevance, embedded or raw."""
        for source in self.trace.sources:
            if source.name and (embedded is None or source.embedded == embedded):
                return source
        kind = "embedding of an integer input" if embedded else "floating-point input"
        raise InputError(
            f"Relevance has nowhere to go: the model has no {kind}. Give the model its float inputs "
            "(for example inputs_embeds or pixel_values), or choose another `at`."
        )

    # -- backwards -------------------------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        """Whether the same forward will be read again, for another target."""
        return bool(self.followers)

    def backward(self, tensors: Sequence[Tensor], relevance: bool = False, keep: bool = False) -> list[Tensor]:
        """Send the seed back and return what arrives at each tensor: gradients, or relevance.

        Args:
            tensors: where to read.
            relevance: carry relevance (a rulebook with a phase).
            keep: whether another backward will follow.
        """
        keep = keep or self.more
        if self.rulebook.phase is not None:
            self.rulebook.phase.relevance = relevance
            self.rulebook.phase.keep = keep
            self.rulebook.phase.ledger = self.ledger
        asked, tensors = len(tensors), self.ends(tensors)
        found = self.send(tensors, keep)
        for b in [*self.boundaries, *self.aside]:  # at its end autograd calls no hook of an overwritten tensor
            arrived = next((g for t, g in zip(tensors, found, strict=True) if t is b.tensor), None)
            if arrived is not None:
                b.take(self.way(), arrived)
        device = self.seed.output.device
        filled = [torch.zeros_like(t, device=device) if g is None else g for t, g in zip(tensors, found, strict=True)]
        return filled[:asked]

    def send(self, tensors: Sequence[Tensor], keep: bool) -> list[Tensor | None]:
        """Send the seed's weights (or others) back: what arrives at each tensor; boundaries keep what passes them."""
        start, own = self.seed.start
        sent = (own if self.instead is None else self.instead).to(start.dtype)
        hooks = [b.watch(self.way()) for b in self.passages()]
        for layers in (self.trace, self.rulebook.phase):
            if layers is not None:
                layers.sparse_rows.looking = True
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
        return BackwardContext(phase is None or not phase.relevance, self.trace.batch, self.tokens())

    def passages(self) -> list[BackwardRecorder]:
        """Where what passes is written down."""
        return [*self.boundaries, *self.aside, *self.watched]

    def watch(self, *recorders: BackwardRecorder) -> None:
        """Let recorders see the backward passes that follow."""
        self.watched += recorders

    def watch_heads(self) -> None:
        """Have the backwards that follow write down what each head carried."""
        self.watch(*(HeadRelevance(record) for record in self.trace.attentions))

    def heads(self) -> Tensor | None:
        """``[batch, attentions, heads]``: what each carried; ``None`` if that is not known, or their number differs."""
        nothing = precise(self.seed.logits).new_zeros(self.trace.batch.size, 1)
        nodes = nodes_behind([node_of(self.seed.output)]) if self.windowed() else None
        found = []
        for w in [w for w in self.watched if isinstance(w, HeadRelevance)]:
            if w.relevance is None and not w.known:
                return None
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
            sums = [relevance.sum(1) for b, relevance in met if any(b is x for x in passed)]
            marks = [b.node.seq for b in passed]
            before = set(range(node_of(end).seq + 1)) if end is not None else set()
            if len(entries) > 1:
                into = [(b, r) for b, r in [*met, *joined] if any(b.tensor is t for t in entries)]
                for b, relevance in joined:
                    if not any(b is x for x, _ in into):
                        self.ledger.absorb(b.node.seq, "constant", "embedding", relevance.sum(1))
                sums = [torch.stack([relevance.sum(1) for _, relevance in into]).sum(0)] if into else []
                marks = [min(b.node.seq for b, _ in into)] if into else []
                before = {seq for t in entries for seq in node_of(t).ancestors()}
            ends = {node_of(t).seq for t in (entries if len(entries) > 1 else (end,)) if t is not None}
            self.ledger.close(total, sums, marks, before, ends)
        layers = [relevance for _, relevance in met[:-1]]
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

    def tokens(self) -> Dim:
        """The token axis: what the first attention reads; of windows or merged tokens, what enters its block."""
        keys = self.keys()
        if not self.windowed():
            return keys
        record = self.trace.attentions[0]
        axes = self.boundaries[0].node.token_axes
        features = record.reads.axes[-1] if record.reads is not None and record.reads.axes[-1] in axes else axes[-1]
        own = [dim for dim in axes if self.trace.batch not in dim]
        if len(own) == 3 and size_of(own[1] + own[2]) == size_of(keys) != size_of(own[0] + own[1]):
            return own[1] + own[2]  # features first, then rows and columns (CoAtNet)
        return tuple(atom for dim in axes if dim != features for atom in dim if atom is not self.trace.batch)

    def windowed(self) -> bool:
        """Whether the first attention reads other tokens than those that enter its block: windows, merged tokens."""
        if len(self.boundaries) < 2:
            return False
        keys, node = self.keys(), self.boundaries[0].node
        own = [dim for dim in node.token_axes if dim != (self.trace.batch,)]
        return keys not in own and token_dims(node.axes, keys) is None

    def keys(self) -> Dim:
        """The axis that the first attention reads; without attention, that of the embedded input."""
        if not self.trace.attentions:
            rows = [node_of(s.tensor).axes for s in self.trace.sources if s.name and s.embedded and s.tensor.dim() == 3]
            return rows[0][1] if rows else ()
        record = self.trace.attentions[0]
        return record.axes[record.key]

    def per_token(self, relevance: Tensor, axes: Axes) -> Tensor:
        """Sum a tensor over its features: ``[batch, tokens]``."""
        return per_token(relevance, axes, self.trace.batch, self.tokens())

    @property
    def mask(self) -> Tensor | None:
        """``[batch, tokens]``, true where a token of the main stream is padding; ``None`` if there is no such mask."""
        return self.padding(self.tokens())

    def padding(self, tokens: Dim) -> Tensor | None:
        """The user's mask, if it is of these tokens: not of a picture's, where there is a text; not of a decoder's."""
        named = [(source.name, source.tensor) for source in self.trace.sources if source.name]
        own = [t for name, t in named if name in ("input_ids", "inputs_embeds")]
        if self.given is None:
            return None
        atoms = [atom for t in own or [t for _, t in named] for dim in node_of(t).axes[1:] for atom in dim]
        mask = over(self.given, tokens, atoms)  # with what the model has put beside these tokens
        if not own:
            return mask if tokens == self.tokens() else None
        apart = any(name.startswith("decoder") or t.shape[:2] != self.given.shape for name, t in named)
        return mask if mask is not self.given or any(atom in atoms for atom in tokens) or not apart else None

    def mask_answer(self, index: Tensor) -> None:
        """Take the padding of one answer in each sample from a mask ``[batch, answers, tokens]``, if one was given.

        Args:
            index: the answer, ``[batch]``.
        """
        mask = None if self._forward is None else self._forward.kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 3:
            self.given = mask[torch.arange(len(mask)), index] == 0

    def absent(self, scores: Tensor, tokens: Dim) -> Tensor | None:
        """True where scores ``[batch, positions]`` are of padding: of tokens, or of the user's own input alone."""
        mask = self.padding(tokens)
        if mask is not None and mask.shape != scores.shape:
            mask = self.given
        return None if mask is None or mask.shape != scores.shape else mask
