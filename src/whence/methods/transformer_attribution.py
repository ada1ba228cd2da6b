"""Transformer interpretability beyond attention visualization (Chefer, Gur, Wolf, CVPR 2021).

Relevance is propagated from the class (seed 1) by deep Taylor decomposition through linear layers (eq. 3: positive
contributions), matrix products and skip connections (eq. 7: normalised, so that each block's relevance sums to 1), and
read at every attention map. With the map's gradient, ``A = I + E_h((dy/dA * R)^+)`` (eq. 8), and the rows that the
target reads of ``A_1 ... A_B`` (eq. 9) are the scores.

Where the published code differs:

- it is for one sample: the sums of eq. 7 run over the whole batch there, per sample here;
- for BERT it divides each row of ``A`` by its sum (``normalise=True``) and starts at layer 11 (``start_layer=11``); for
  ViT it does neither; its evaluation on ViT uses ``start_layer=1``. The paper's equations are the default here;
- its stabiliser, 1e-9 in every denominator and also where a tensor is merely read twice, is kept (``eps``), except
  that relevance arriving at an exact zero is not lost there.

A contrast (:func:`whence.contrast`), which the paper does not cover, uses the gradient of the difference and the
relevance of the first class: eq. 7 is undefined when the total relevance is zero.

Between several streams, the rules of `generic-attention` apply with the relevance of each map in place of the map: the
default of the published code of Chefer et al. 2021b for LXMERT and DETR (not of its paper).

Ablations (paper, table 3): without gradients ``gradient=False``; one block only ``block=-1`` (last) or ``block=1``.

Cost: one forward pass, a backward pass of gradients and one of relevance (about three plain backward passes), and a
copy of the linear layers' weights in memory (their absolute values, cached between explanations up to 1 GiB). Fused
attention stays fused; its maps are recomputed as relevance passes, in chunks of heads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import MethodError
from ..propagation.relevance_function import Phase
from ..propagation.rulebook import Rulebook
from ..propagation.rules.fused_attention import FusedAttentionRule
from ..propagation.rules.linear import EPS
from ..propagation.rules.relevance import RelevanceRules
from ..readout.cross_stream_rollup import explained_scores, roll_up_states, zero_layers_before
from ..readout.map_walk import LayerMap, MapAccumulator, visit_relevance
from ..readout.rollup import has_several_streams, require_attention, require_local, roll_up, row_weights, stack_layers
from ..runs.batched_targets import read_at_once
from ..runs.run import Run
from ..runs.token_streams import entries
from ..tracing.fused_attention import Piece
from ..tracing.op_call import Rule
from .base import Method, Reading
from .generic_attention import GenericAttention
from .registry import method


def relevance_rulebook(rules: RelevanceRules) -> Rulebook:
    """Return the rules of sec. 3.1 and 3.2, per kind of operation."""
    book: dict[str, Rule] = {
        "linear": rules(rules.linear),
        "convolution": rules(rules.linear),
        "matmul": rules(rules.product),
        "mix": rules(rules.product),
        "gate": rules(rules.product),
        "add": rules(rules.add),
        "shift-by-constant": rules(rules.add_constant),
        "reduce": rules(rules.deep_taylor),
        "function": rules(rules.deep_taylor),
        "unknown": rules(rules.deep_taylor),
        "selecting": rules(rules.select),
        "softmax": rules.softmax,
    }
    unchanged = ("norm", "center", "normalise", "ratio", "gated", "activation", "scale", "shift")
    book |= dict.fromkeys(unchanged, rules.identity)
    book["attention"] = FusedAttentionRule(rules)
    return Rulebook(book, phase=rules.phase, fan_out=rules.fan_out)


@method("transformer-attribution")
@dataclass
class TransformerAttribution(Method):
    """Relevance times gradient of every attention map, rolled up.

    Attributes:
        start_layer: the first block taken into account.
        gradient: weight the maps' relevance by their gradient.
        block: use this block alone, without roll-up.
        normalise: divide each row of ``A`` by its sum.
        eps: the stabiliser of every denominator.
    """

    paper: ClassVar[str] = "Chefer, Gur, Wolf, CVPR 2021"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = (
        "Relevance and gradients of attention joined, followed through all layers: which tokens spoke for this answer."
    )
    beware: ClassVar[str] = (
        "It shows only what speaks for the answer; where attention carries little, so does the picture."
    )
    backwards: ClassVar[int] = 2
    needs: ClassVar[str] = "attention"

    start_layer: int = 0
    gradient: bool = True
    block: int | None = None
    normalise: bool = False
    eps: float = EPS

    def rulebook(self) -> Rulebook:
        """Return deep Taylor decomposition with the published normalisation."""
        return relevance_rulebook(RelevanceRules(Phase(), self.eps))

    def read(self, run: Run) -> Reading:
        """Return the explained rows of the roll-up."""
        require_attention(run, self.name, self.start_layer, self.block)
        require_local(run, self.name)
        several = has_several_streams(run)
        *found, rows = read_at_once(run, functools.partial(self.maps, run, several))
        maps = found[: len(found) // 2]
        shares = found[len(found) // 2 :]
        end = run.boundaries[0].tensor if run.boundaries else None
        sent = run.seed.weights.clamp(min=0)
        layers = run.settle(gradient=False, end=end, entries=[t for t, _ in entries(run)], sent=sent)
        if several:
            if self.block is not None:
                raise MethodError("The model has several streams of tokens: `block` is for models with one.")
            written = roll_up_states(run, zero_layers_before(run, maps, self.start_layer), GenericAttention().update)
            (_, scores), *others = explained_scores(run, written)
            return Reading(scores, layers, stack_layers(shares), others=others)
        if self.block is not None:
            scores = (rows @ maps[self.block])[:, 0]
        else:
            scores = roll_up(maps[self.start_layer :], rows, self.normalise)[:, 0]
        return Reading(scores, layers, stack_layers(shares), pairs=stack_layers(maps) if run.rulebook.inside else None)

    def maps(self, run: Run, keep: bool = False, weights: Tensor | None = None) -> list[Tensor]:
        """Return each attention's ``E_h((dy/dA * R)^+)``, ``[batch, queries, keys]``.

        Returns:
            These maps, the mass of the heads of each, ``[batch, heads]``, and the row weights of the last one.
        """
        records = run.trace.attentions
        layers: dict[int, LayerMap] = {}
        accumulator = MapAccumulator(records, layers.__setitem__)

        def visit(i: int, chunk: Piece, gradient: Tensor, relevance: Tensor) -> None:
            weighted = (gradient * relevance if self.gradient else relevance.clone()).clamp_(min=0)
            accumulator.add(i, chunk, weighted, gradient)

        first = [*(b.tensor for b in run.boundaries[:1]), *(t for t, _ in entries(run))]
        ends = list({id(t): t for t in first}.values())  # so that the ledger reaches the first block's input
        visit_relevance(run, visit, ends, keep, weights)
        for i, record in enumerate(records):
            heads, queries, keys = record.shape
            layers.setdefault(i, LayerMap(record.zeros(queries, keys), record.zeros(heads), record.zeros(queries)))
        found = [layers[i] for i in range(len(records))]
        return [*(x.map for x in found), *(x.mass for x in found), row_weights(found[-1].read)]
