"""Agreement with human rationales (ERASER; Chefer et al., CVPR 2021).

Scores are of whole words: the sum over their tokens. The marked words are those that overlap a rationale, whether the
model read them or not: truncated words count as not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import numpy as np

from ..._utils.optional_imports import need
from ..case import Case, Flags, Floats
from ..measure import Measure, measure

COUNTS = np.array([10, 20, 30, 40, 50, 60, 70, 80])


def by_word(case: Case) -> tuple[Floats, Flags]:
    """Return ``[words]``: each word's score (minus infinity if truncated), and whether annotators marked it."""
    assert case.item.rationale is not None
    text = str(case.item.input)
    read = {(w.start, w.end): w.score for w in case.explanation.words[0]}
    unread = [(m, n) for m, n in _spaced(text) if not any(a < n and m < b for a, b in read)]
    spans = [*read, *unread]
    scores = np.array([*read.values(), *[-np.inf] * len(unread)])
    marked = np.array([any(a < n and m < b for a, b in case.item.rationale) for m, n in spans])
    return scores, marked


def _spaced(text: str) -> list[tuple[int, int]]:
    """Return the spans between spaces."""
    out: list[tuple[int, int]] = []
    at = 0
    for space, run in groupby(text, str.isspace):
        end = at + len(list(run))
        out += [] if space else [(at, end)]
        at = end
    return out


def f1(hits: float, found: float, marked: float) -> float:
    """Return the harmonic mean of precision and recall."""
    return 2 * hits / (found + marked) if found + marked else 0.0


@measure("token-f1")
@dataclass(frozen=True)
class TokenF1(Measure):
    """The F1 score of the ``k`` strongest words against the marked ones, for k from 10 to 80."""

    paper: ClassVar[str] = "Chefer et al., CVPR 2021; DeYoung et al., ACL 2020"
    along: ClassVar[str] = "number of words k"
    needs: ClassVar[frozenset[str]] = frozenset({"rationale"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the F1 score at each k."""
        scores, marked = by_word(case)
        order = case.order(scores)
        return np.array([f1(marked[order[:k]].sum(), min(k, len(order)), marked.sum()) for k in COUNTS])

    def finish(self, mean: Floats) -> Floats:
        """Return the mean over k."""
        return np.asarray(mean.mean(-1))

    def axis(self) -> Floats:
        """Return the counts k."""
        return COUNTS.astype(float)


@measure("iou-f1")
@dataclass(frozen=True)
class SpanF1(Measure):
    """The F1 score of spans: one counts as found if its intersection over union with a marked one is at least a half.

    Attributes:
        k: the number of words; adjacent ones form a span.
    """

    paper: ClassVar[str] = "DeYoung et al., ACL 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"rationale"})

    k: int = 40

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the F1 score of one text."""
        scores, marked = by_word(case)
        taken = np.zeros_like(marked)
        taken[case.order(scores)[: self.k]] = True
        found = _runs(taken)
        true = _runs(marked)
        hits = sum(any(_overlap(a, b) >= 0.5 for b in true) for a in found)
        return np.array([f1(hits, len(found), len(true))])


def _runs(flags: Flags) -> list[tuple[int, int]]:
    """Return start and end of each run of true entries."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the intersection over union of two spans."""
    both = min(a[1], b[1]) - max(a[0], b[0])
    return max(0, both) / (a[1] - a[0] + b[1] - b[0] - max(0, both))


@measure("auprc")
@dataclass(frozen=True)
class PrecisionRecall(Measure):
    """The area under precision over recall (average precision) of the words' scores."""

    paper: ClassVar[str] = "DeYoung et al., ACL 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"rationale"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the average precision of one text."""
        precision = need("sklearn.metrics", "average precision", "evaluation").average_precision_score
        scores, marked = by_word(case)
        lowest = scores[np.isfinite(scores)].min() - 1
        return np.array([precision(marked, np.where(np.isfinite(scores), scores, lowest)) if marked.any() else 0.0])
