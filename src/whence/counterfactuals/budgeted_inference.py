"""Logits of changed inputs: each computed once, in batches, and never more of them than the budget allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, combinations

import numpy as np
import torch

from ..errors import InputError
from ..evaluation.case import Floats, as_floats
from ..explainer.explainer import Explainer
from ..inputs.sample import Sample, batches, collate
from ..targets.seed import find_logits
from ..tracing.eval_mode import undisturbed
from .edits import Editor
from .flip_criterion import FlipCriterion

#: indices of the editor's changes that are made
ChangeSet = frozenset[int]
#: margins smaller than this many rounding errors are computed again, one input at a time
ROUNDINGS = 100


class BudgetExhausted(Exception):  # noqa: N818  # not an error: it ends the search
    """The end of the budget: no further input may be run."""


class BudgetedInference:
    """Logits of the changed forms of one input, with a cache and a budget.

    Args:
        explainer: holds the model.
        editor: makes the changed forms.
        criterion: decides which predictions count as flipped.
        budget: the largest number of inputs that the models may be run on.
        batch_size: how many are run together.

    Attributes:
        known: the margin of each set of changes that was tried: above 0 the prediction flips; minus infinity where
            nothing readable was left of the input.
        logits: ``[classes]`` of each set that could be read.
        tried: how many inputs were run, by the step of the search.
    """

    def __init__(
        self, explainer: Explainer, editor: Editor, criterion: FlipCriterion, budget: int, batch_size: int
    ) -> None:
        self.explainer = explainer
        self.editor = editor
        self.criterion = criterion
        self.budget = budget
        self.batch_size = batch_size
        self.known: dict[ChangeSet, float] = {}
        self.logits: dict[ChangeSet, Floats] = {}
        self.tried: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()

    @property
    def remaining(self) -> int:
        """The number of inputs that may still be run."""
        return self.budget - self.tried.total()

    def margins(self, sets: Iterable[ChangeSet], why: str) -> list[float]:
        """Return the margin of each set of changes; above 0, the prediction flips.

        Raises:
            BudgetExhausted: the budget did not suffice for all sets; what was run is in ``known``.
        """
        wanted = list(sets)
        new = [s for s in dict.fromkeys(wanted) if s not in self.known]
        for start in range(0, len(new), self.batch_size):
            self._run(new[start : start + self.batch_size], why)
        return [self.known[s] for s in wanted]

    def _run(self, sets: Sequence[ChangeSet], why: str) -> None:
        readable: list[tuple[ChangeSet, Sample]] = []
        for chosen in sets:
            sample = self.editor.sample(chosen)
            if sample is None:
                self._note(chosen, -math.inf)
            else:
                readable.append((chosen, sample))
        some = readable[: self.remaining]
        for places in batches([sample for _, sample in some], self.batch_size):
            self._run_batch([some[i] for i in places], why)
        if len(some) < len(readable):
            raise BudgetExhausted

    def _run_batch(self, some: list[tuple[ChangeSet, Sample]], why: str) -> None:
        """Run inputs of one shape together; those that rounding in a batch could flip are run again alone."""
        logits = logits_of(self.explainer, [sample for _, sample in some])
        self.tried[why] += len(some)
        near = ROUNDINGS * torch.finfo(next(self.explainer.model.parameters()).dtype).eps
        unsure: list[tuple[ChangeSet, Sample]] = []
        for (chosen, sample), row in zip(some, logits, strict=True):
            margin = float(self.criterion.margins(row[None])[0])
            if len(some) == 1 or abs(margin) > near * np.abs(row[np.isfinite(row)]).max(initial=0.0):
                self._note(chosen, margin, row)
            else:
                unsure.append((chosen, sample))
        for one in unsure:
            if not self.remaining:
                raise BudgetExhausted
            self._run_batch([one], why)

    def _note(self, chosen: ChangeSet, margin: float, logits: Floats | None = None) -> None:
        self.known[chosen] = margin
        self._sizes[len(chosen)] += 1
        if logits is not None:
            self.logits[chosen] = logits

    # -- conclusions -------------------------------------------------------------------------------------------------

    @property
    def best(self) -> ChangeSet | None:
        """The smallest set known to flip the prediction; ties go to a minimal one, then likelihood, then margin."""
        flips = [s for s, margin in self.known.items() if margin > 0]
        if not flips:
            return None
        size = min(map(len, flips))
        likely = self.editor.likely
        return min(
            (s for s in flips if len(s) == size),
            key=lambda s: (not self.minimal(s), -sum(likely[i] for i in s), -self.known[s], sorted(s)),
        )

    @property
    def closest(self) -> ChangeSet | None:
        """The set with the largest margin; ties go to the smallest."""
        readable = [s for s in self.logits if s]
        return min(readable, key=lambda s: (-self.known[s], len(s), sorted(s))) if readable else None

    def minimal(self, chosen: ChangeSet) -> bool:
        """Return whether every proper subset was run and none flips the prediction."""
        if 2 ** len(chosen) - 2 > len(self.known):
            return False
        return all(self.known.get(s, 1.0) <= 0 for s in subsets(chosen))

    def irreducible(self, chosen: ChangeSet) -> bool:
        """Return whether every subset with one change less was run and none flips the prediction."""
        return len(chosen) == 1 or all(self.known.get(chosen - {i}, 1.0) <= 0 for i in chosen)

    def smallest(self, size: int) -> bool:
        """Return whether every possible set of fewer than ``size`` changes was run."""
        return not any(self.missing(fewer) for fewer in range(1, size))

    def missing(self, size: int) -> int:
        """Return how many sets of a size were not run yet."""
        return self.count(size) - self._sizes[size]

    def count(self, size: int) -> int:
        """Return how many sets of a size there are, with at most one change per place."""
        ways = [1] + [0] * size  # the elementary symmetric polynomials of the numbers of elements at the places
        for options in Counter(self.editor.places).values():
            for k in range(size, 0, -1):
                ways[k] += options * ways[k - 1]
        return ways[size]


def subsets(chosen: ChangeSet) -> Iterable[ChangeSet]:
    """Return all proper subsets but the empty one, the smallest first."""
    ordered = sorted(chosen)
    return map(frozenset, chain.from_iterable(combinations(ordered, size) for size in range(1, len(ordered))))


def logits_of(explainer: Explainer, samples: Sequence[Sample]) -> Floats:
    """Return the logits ``[n, classes]`` of inputs of one shape, from an untraced forward pass.

    For a model with logits at every position, they are those of the sample's position, or of its last token.
    """
    model = explainer.model
    given = explainer.placed(collate(samples))
    with torch.no_grad(), undisturbed(model):
        outputs = model(given[""]) if list(given) == [""] else model(**given)
    found = find_logits(outputs)
    if found is not None and found.dim() == 3:
        at = [s.length - 1 if s.position is None else s.position for s in samples]
        found = found[torch.arange(len(at)), at]
    if found is None or found.dim() != 2 or len(found) != len(samples):
        raise InputError("The model gives no classes [batch, classes]: what it says of a changed input is unknown.")
    return as_floats(found)
