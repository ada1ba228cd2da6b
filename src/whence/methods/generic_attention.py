"""Generic attention-model explainability (Chefer, Gur, Wolf, ICCV 2021).

Each attention's map is its heads weighted by their gradients, ``A = E_h((dy/dA * A)^+)`` (eq. 5), and relevance
accumulates from the identity. For self-attention in one stream, ``R = R + A R`` (eq. 6, 7). Where a stream ``s``
attends to another stream ``q`` (co-attention, a decoder to its encoder),

    R_sq = R_sq + N(R_ss)^T A N(R_qq)        (eq. 10)
    R_ss = R_ss + A R_qs                     (eq. 11; 0 for a decoder, as an encoder does not attend to it)

with ``N(R)`` the identity plus ``R - I`` with rows that sum to 1 (eq. 8, 9). The scores of each stream are the rows
that the target reads: for a classifier, [CLS]; for a mean over tokens, their mean; for CLIP, one in each tower.

Where published code differs:

- eq. 8 and 9 are undefined for a row of ``R - I`` that is all zeros. LXMERT's code then returns NaN, DETR's drops the
  whole addition; here the row stays zero;
- the default of the published LXMERT and DETR code replaces ``A`` in eq. 5 by LRP's relevance. The paper's method is
  the one without;
- ``co_attention="plain"`` leaves out eq. 8 and 9, ``"bare"`` also the matrices around ``A`` in eq. 10 (the ablations);
- for CLIP it uses the last layer only (``start_layer=-1``).

Ali et al. 2022 report two different methods as "GAE": their IMDB code is this one, their SST code divides each row of
``I + A`` by its sum and sums all rows (``normalise=True, rows="all"``).

Cost: one forward pass, one backward pass; a second, shorter backward pass if there are several streams. Fused attention
stays fused, and its map is recomputed in the backward pass, in chunks of heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import MethodError
from ..readout.cross_stream_rollup import State, accumulate, explained_scores, roll_up_states, zero_layers_before
from ..readout.map_walk import LayerMap, MapAccumulator, visit_gradients
from ..readout.rollup import (  # fmt: skip
    all_rows,
    column_sums,
    has_several_streams,
    require_attention,
    require_local,
    roll_layer,
    row_weights,
    stack_layers,
)
from ..runs.batched_targets import read_at_once
from ..runs.run import Run
from ..tracing.axes import Dim, size_of
from ..tracing.fused_attention import Piece
from .attention import AttentionLevel
from .base import Reading
from .registry import method


@method("generic-attention")
@dataclass
class GenericAttention(AttentionLevel):
    """Gradient-weighted attention, rolled up.

    Attributes:
        start_layer: the first layer taken into account, counted in each stream.
        normalise: divide each row of ``I + A`` by its sum (one stream only).
        co_attention: eq. 10: ``"normalised"``, ``"plain"`` (without eq. 8, 9) or ``"bare"`` (``A`` alone).
        token: read the row of this token of the main stream (for a word: the tokens that it attended to, in the text
            and in the image), instead of the rows that the target reads.
    """

    paper: ClassVar[str] = "Chefer, Gur, Wolf, ICCV 2021"
    shows: ClassVar[str] = "Attention weighted by how much it helped the answer, followed through all layers."
    beware: ClassVar[str] = "It shows only what speaks for the answer, and nothing that bypassed attention."
    class_specific: ClassVar[bool] = True

    start_layer: int = 0
    normalise: bool = False
    co_attention: str = "normalised"
    token: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.co_attention not in ("normalised", "plain", "bare"):
            raise MethodError(f"`co_attention` must be 'normalised', 'plain' or 'bare', not {self.co_attention!r}.")
        if self.token is not None and self.rows != "target":
            raise MethodError("`token` chooses one row and `rows` all of them: give one of the two.")

    def read(self, run: Run) -> Reading:
        """Return the explained rows of ``R``."""
        require_attention(run, self.name, self.start_layer)
        require_local(run, self.name)
        if self.token is not None and not 0 <= self.token < size_of(run.tokens):
            raise MethodError(f"There is no token {self.token}: there are {size_of(run.tokens)}, from 0.")
        return self._read_streams(run) if has_several_streams(run) else self._read_single_stream(run)

    def _read_single_stream(self, run: Run) -> Reading:
        """Return the scores of one stream: the explained rows are rolled up during the backward pass."""
        scores, *found = read_at_once(run, functools.partial(self._roll_up, run))
        layers = len(run.trace.attentions)
        return Reading(scores, heads=stack_layers(found[:layers]), pairs=stack_layers(found[layers:]))

    def _roll_up(self, run: Run, weights: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return scores ``[batch, keys]``, then per layer the mass of its heads, ``[batch, heads]``, and any pairs."""
        records = run.trace.attentions
        last = len(records) - 1
        used = range(len(records))[self.start_layer :]
        shares = [record.zeros(record.shape[0]) for record in records]
        pairs = [record.zeros(*record.shape[1:]) for record in records if run.rulebook.inside]
        rows = records[last].zeros(1, records[last].shape[1])
        if self.rows == "all":
            rows = all_rows(rows)
        if self.token is not None:
            rows[:, :, self.token] = 1.0

        def done(i: int, layer: LayerMap) -> None:
            nonlocal rows
            if i == last and self.rows == "target" and self.token is None:
                rows = row_weights(layer.read)
            shares[i] = layer.mass
            if run.rulebook.inside:
                pairs[i] = layer.map
            if i in used:
                rows = roll_layer(rows, layer.map, self.normalise)

        visit_weighted_maps(run, done, weights=weights)
        scores = column_sums(rows, run.mask) if self.rows == "all" else rows[:, 0]
        return scores, *shares, *pairs

    def _read_streams(self, run: Run) -> Reading:
        """Return the scores of several streams: every attention's map first, then the states of all tokens."""
        maps, shares = self.maps(run, keep=True)
        written = roll_up_states(run, zero_layers_before(run, maps, self.start_layer), self.update)
        (_, scores), *others = explained_scores(run, written, every=self.rows == "all", token=self.token)
        return Reading(scores, heads=stack_layers(shares), others=others)

    def maps(self, run: Run, keep: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """Return each attention's map of eq. 5, ``[batch, queries, keys]``, and its heads' mass, ``[batch, heads]``."""
        records = run.trace.attentions
        maps = [record.zeros(*record.shape[1:]) for record in records]
        shares = [record.zeros(record.shape[0]) for record in records]

        def done(i: int, layer: LayerMap) -> None:
            maps[i] = layer.map
            shares[i] = layer.mass

        visit_weighted_maps(run, done, keep)
        return maps, shares

    def update(self, mine: State, read: State, A: Tensor, queries: Dim, keys: Dim, begun: State | None = None) -> State:
        """Return the state of the queries after an attention: eq. 6, 7, 10 and 11."""
        if (
            queries == keys or queries not in mine or keys not in read
        ):  # not in it: tokens made of other streams' tokens
            return accumulate(mine, read, A, queries, keys, begun)
        others = {stream: R for stream, R in read.items() if stream != keys}
        new = accumulate(mine, others, A, queries, keys, begun)
        if self.co_attention != "bare":
            own, theirs = mine[queries], read[keys]
            if self.co_attention == "normalised":
                own, theirs = normalised_relevance(own), normalised_relevance(theirs)
            A = own.mT @ A @ theirs
        return {**new, keys: new.get(keys, 0.0) + A}


def normalised_relevance(R: Tensor) -> Tensor:
    """Return ``N(R)``: the identity, plus ``R - I`` with rows that sum to 1 (eq. 8, 9); rows of zeros stay zeros."""
    identity = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    rest = R - identity
    sums = rest.sum(-1, keepdim=True)
    return identity + torch.where(sums == 0, 0.0, rest / sums)


def visit_weighted_maps(
    run: Run, done: Callable[[int, LayerMap], None], keep: bool = False, weights: Tensor | None = None
) -> None:
    """Run a backward pass and reduce ``(dy/dA * A)^+`` of each attention over its heads (eq. 5)."""
    accumulator = MapAccumulator(run.trace.attentions, done)

    def visit(i: int, chunk: Piece, A: Tensor, gradient: Tensor) -> None:
        accumulator.add(i, chunk, (gradient * A).clamp_(min=0), gradient)

    visit_gradients(run, visit, keep, weights)
