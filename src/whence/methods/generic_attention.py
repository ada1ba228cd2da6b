"""Generic attention-model explainability (Chefer, Gur, Wolf, ICCV 2021).

Each attention's map is its heads weighted by their gradients, ``A = E_h((dy/dA * A)^+)`` (eq. 5), and relevance
accumulates from the identity. Where tokens of one stream look at themselves, ``R = R + A R`` (eq. 6, 7). Where a stream
``s`` looks at another stream ``q`` (co-attention, a decoder at its encoder),

    R_sq = R_sq + N(R_ss)^T A N(R_qq)        (eq. 10)
    R_ss = R_ss + A R_qs                     (eq. 11; nothing for a decoder, as an encoder does not look at it)

with ``N(R)`` the identity plus ``R - I`` with rows that sum to 1 (eq. 8, 9). The scores of each stream are the rows
that the target reads: for a classifier, [CLS]; for a mean over tokens, their mean; for CLIP, one in each tower.

Where published code differs:

- a row of ``R - I`` that is all zeros has no sum to be divided by. LXMERT's code then returns NaN, DETR's drops the
  whole addition; here the row stays zero;
- the default of the published LXMERT and DETR code puts LRP's relevance in place of ``A`` in eq. 5. The paper's method
  is the one without;
- ``co_attention="plain"`` leaves out eq. 8 and 9, ``"bare"`` also the matrices around ``A`` in eq. 10 (the ablations);
- for CLIP it looks at the last layer only (``start_layer=-1``).

Ali et al. 2022 report two different methods as "GAE": their IMDB code is this one, their SST code divides each row of
``I + A`` by its sum and adds up all rows (``normalise=True, rows="all"``).

Cost: one forward, one backward, with attention maps written out; a second, shorter backward if there are several
streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..axes import Dim
from ..errors import MethodError
from ..relations import State, accumulate, explained, from_layer, relate
from ..rollup import (
    all_rows,
    column_sums,
    positive_mean,
    read_rows,
    require_attention,
    require_local,
    roll_up,
    several_streams,
    stacked,
)  # fmt: skip
from ..run import Run
from . import Reading, method
from .attention import AttentionLevel


@method("generic-attention")
@dataclass
class GenericAttention(AttentionLevel):
    """Gradient-weighted attention, rolled up.

    Attributes:
        start_layer: the first layer taken into account, counted in each stream.
        normalise: divide each row of ``I + A`` by its sum (one stream only).
        co_attention: eq. 10: ``"normalised"``, ``"plain"`` (without eq. 8, 9) or ``"bare"`` (``A`` alone).
    """

    paper: ClassVar[str] = "Chefer, Gur, Wolf, ICCV 2021"
    class_specific: ClassVar[bool] = True

    start_layer: int = 0
    normalise: bool = False
    co_attention: str = "normalised"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.co_attention not in ("normalised", "plain", "bare"):
            raise MethodError(f"`co_attention` must be 'normalised', 'plain' or 'bare', not {self.co_attention!r}.")

    def read(self, run: Run) -> Reading:
        """The explained rows of ``R``."""
        require_attention(run, self.name, self.start_layer)
        require_local(run, self.name)
        several = several_streams(run)
        maps, rows, heads = self.maps(run, keep=several)
        if several:
            written = relate(run, from_layer(run, maps, self.start_layer), self.update)
            (_, scores), *others = explained(run, written, every=self.rows == "all")
            return Reading(scores, heads=heads, others=others)
        maps = maps[self.start_layer :]
        if self.rows == "all":
            scores = column_sums(roll_up(maps, all_rows(maps[0]), self.normalise), run.mask)
        else:
            scores = roll_up(maps, rows, self.normalise)[:, 0]
        return Reading(scores, heads=heads)

    def maps(self, run: Run, keep: bool = False) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """Each layer's ``E_h((dy/dA * A)^+)``, the explained rows of the last, and the heads' shares."""
        records = run.trace.attentions
        probabilities = [r.probabilities for r in records if r.probabilities is not None]
        gradients = run.backward(probabilities, keep=keep)
        weighted = [r.arrange(g * p.detach()) for r, g, p in zip(records, gradients, probabilities, strict=True)]
        rows = read_rows(records[-1].arrange(gradients[-1]))
        return [positive_mean(w) for w in weighted], rows, head_shares(weighted)

    def update(self, mine: State, read: State, A: Tensor, queries: Dim, keys: Dim) -> State:
        """What an attention does to the state of its queries: eq. 6, 7, 10 and 11."""
        if queries == keys or queries not in mine or keys not in read:  # or tokens made of those of other streams
            return accumulate(mine, read, A, queries, keys)
        others = {stream: R for stream, R in read.items() if stream != keys}
        new = accumulate(mine, others, A, queries, keys)
        if self.co_attention != "bare":
            own, theirs = mine[queries], read[keys]
            if self.co_attention == "normalised":
                own, theirs = normalised(own), normalised(theirs)
            A = own.mT @ A @ theirs
        return {**new, keys: new.get(keys, 0.0) + A}


def normalised(R: Tensor) -> Tensor:
    """``N(R)``: the identity, plus ``R - I`` with rows that sum to 1 (eq. 8, 9); rows of zeros stay zeros."""
    identity = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    rest = R - identity
    sums = rest.sum(-1, keepdim=True)
    return identity + torch.where(sums == 0, 0.0, rest / sums)


def head_shares(weighted: list[Tensor]) -> Tensor | None:
    """``[batch, layers, heads]``: the positive mass of each head's map; ``None`` if layers differ in their heads."""
    return stacked([w.clamp(min=0).sum((-2, -1)) for w in weighted])
