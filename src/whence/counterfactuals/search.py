"""The search for the smallest set of changes that flips a prediction.

First, changes are added in the order of relevance until the prediction flips; then as many as possible are undone. In
the terms of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 2002)
the flip is the failure, and a set from which no single change can be undone is 1-minimal. All subsets of small sets are
then tried, and the rest of the budget is spent on sets of fewer changes: all of them, if it suffices.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, islice, product

from .budgeted_inference import BudgetedInference, BudgetExhausted, ChangeSet, subsets

GROWTH = 1.25  # factor between the sizes of successive sets
TRIES = 64  # replacements of two changes by one that are tried


class Search:
    """The search for the smallest set of changes that flips a prediction; its findings are in ``inference``.

    Args:
        inference: computes the margins of sets of changes.
        relevance: per place, the relevance for the prediction.
    """

    def __init__(self, inference: BudgetedInference, relevance: Sequence[float]) -> None:
        self.inference = inference
        self.places = inference.editor.places
        self.order = sorted(range(len(self.places)), key=lambda i: -relevance[self.places[i]])

    def run(self) -> None:
        """Search until smaller sets are ruled out, all steps are done, or the budget is spent."""
        steps: list[Callable[[], None]] = [
            self._by_relevance, self._by_effect, self._one_by_one, self._try_sizes, self._large_effects, self._swap,
            self._try_sizes, self._subsets,
        ]  # fmt: skip
        try:
            for step in steps:
                step()
                self._put_back()
                best = self.inference.best
                if best is not None and self.inference.smallest(len(best)):
                    return
        except BudgetExhausted:
            return

    # -- sets that flip ----------------------------------------------------------------------------------------------

    def _by_relevance(self) -> None:
        """Add changes in the order of relevance."""
        self._along(self._one_each(self.order), "in the order of relevance")

    def _by_effect(self) -> None:
        """Try every change alone; then add changes in the order of their effects."""
        effects = self._effects()
        self._along(self._one_each(sorted(effects, key=lambda i: -effects[i])), "in the order of their effects")

    def _one_by_one(self) -> None:
        """Add, greedily, the change with the largest effect given those already made."""
        most = self._most()
        if self.inference.count(1) * most > self.inference.remaining // 2:
            return
        made: ChangeSet = frozenset()
        for _ in range(most):
            taken = {self.places[i] for i in made}
            nexts = [made | {i} for i in self.order if self.places[i] not in taken]
            margins = self.inference.margins(nexts, "one after the other")
            made = nexts[margins.index(max(margins))]
            if max(margins) > 0 or max(margins) == -math.inf:
                return

    def _try_sizes(self) -> None:
        """Try all sets of two changes, of three, ...: all smaller ones, or as many as the budget allows."""
        sizes = range(2, self._most() + 1)
        if self.inference.best is not None and sum(map(self.inference.missing, sizes)) > self.inference.remaining:
            return
        effects = self._effects()
        for size in sizes:
            if self.inference.missing(size) > self.inference.remaining:
                return
            every = (c for c in combinations(effects, size) if len({self.places[i] for i in c}) == size)
            ordered = sorted(every, key=lambda c: -sum(effects[i] for i in c))
            if self._any_flips(map(frozenset, ordered), f"all sets of {size}"):
                return

    def _large_effects(self) -> None:
        """If nothing flips, try sets of any size, the largest effects first; all sizes share the budget."""
        effects = self._effects()
        order = [i for i in self._one_each(sorted(effects, key=lambda i: -effects[i])) if effects[i] > -math.inf]
        values = [effects[i] for i in order]
        left = 0
        while self.inference.best is None and self.inference.remaining != left:
            left = self.inference.remaining
            sizes = growing(len(order))
            for size in sizes:
                sets = (frozenset(order[k] for k in chosen) for chosen in likeliest(values, size))
                new = (s for s in sets if s not in self.inference.known)
                if self._any_flips(islice(new, max(1, left // len(sizes))), "sets of large effects"):
                    return

    # -- smaller ones ------------------------------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Undo changes of the best set, those with the least effect first, until none can be undone."""
        while (best := self.inference.best) is not None and len(best) > 1:
            ordered = sorted(best)
            margins = self.inference.margins([best - {i} for i in ordered], "putting back")
            if max(margins) <= 0:
                return
            least = [i for _, i in sorted(zip(margins, ordered, strict=True), key=lambda pair: -pair[0])]
            self.inference.margins([best - set(least[:count]) for count in growing(len(best) - 1)], "putting back")

    def _subsets(self) -> None:
        """Try every proper subset of the best set, the smallest first, if the budget suffices for all."""
        best = self.inference.best
        if best is None or 2 ** len(best) - 2 > self.inference.remaining + len(self.inference.known):
            return
        missing = [s for s in subsets(best) if s not in self.inference.known]
        if len(missing) <= self.inference.remaining:
            self._any_flips(missing, "subsets")

    def _swap(self) -> None:
        """Replace two changes of the best set by another one, the most promising first."""
        while (best := self.inference.best) is not None and len(best) > 2:
            rests = [best - set(pair) for pair in combinations(sorted(best), 2)]
            margins = dict(zip(rests, self.inference.margins(rests, "putting back two"), strict=True))
            taken = {self.places[i] for i in best}
            effects = {i: effect for i, effect in self._effects().items() if self.places[i] not in taken}
            pairs = heapq.nlargest(TRIES, product(rests, effects), key=lambda pair: margins[pair[0]] + effects[pair[1]])
            if not self._any_flips((rest | {i} for rest, i in pairs), "two for one"):
                return
            self._put_back()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _most(self) -> int:
        """Return the largest size that would be an improvement."""
        best = self.inference.best
        return len(set(self.places)) if best is None else len(best) - 1

    def _effects(self) -> dict[int, float]:
        """Return the margin of each change alone."""
        margins = self.inference.margins([frozenset({i}) for i in self.order], "one alone")
        return dict(zip(self.order, margins, strict=True))

    def _one_each(self, order: Sequence[int]) -> list[int]:
        """Return an order with one change per place: where there are several, the one with the largest effect."""
        if len(set(self.places)) == len(self.places):
            return list(order)
        effects = self._effects()
        chosen: dict[int, int] = {}
        for i in order:
            place = self.places[i]
            if place not in chosen or effects[i] > effects[chosen[place]]:
                chosen[place] = i
        return list(chosen.values())

    def _along(self, order: Sequence[int], why: str) -> None:
        """Try growing prefixes of an order until the prediction flips; then find the shortest that does."""
        before = 0
        for count in growing(min(self._most(), len(order))):
            if self.inference.margins([frozenset(order[:count])], why)[0] > 0:
                self.inference.margins([frozenset(order[:n]) for n in range(before + 1, count)], why)
                return
            before = count

    def _any_flips(self, sets: Iterable[ChangeSet], why: str) -> bool:
        """Return whether any set flips the prediction; batches after the first flip are not tried."""
        waiting = iter(sets)
        while some := list(islice(waiting, self.inference.batch_size)):
            if max(self.inference.margins(some, why)) > 0:
                return True
        return False


def growing(most: int) -> list[int]:
    """Return numbers from 1 to ``most``: at first every one, then with growing steps.

    Example:
        >>> growing(12)
        [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    """
    out: list[int] = []
    while not out or out[-1] < most:
        count = out[-1] if out else 0
        out.append(min(max(count + 1, int(count * GROWTH)), most))
    return out if most > 0 else []


def likeliest(values: Sequence[float], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of ``size`` indices of ``values`` (in descending order), those with the largest sums first.

    Example:
        >>> list(likeliest([5.0, 3.0, 1.0], 2))
        [(0, 1), (0, 2), (1, 2)]
    """
    if size > len(values):
        return
    first = tuple(range(size))
    waiting = [(-sum(values[:size]), first)]
    met = {first}
    while waiting:
        total, chosen = heapq.heappop(waiting)
        yield chosen
        for k, at in enumerate(chosen):
            moved = (*chosen[:k], at + 1, *chosen[k + 1 :])
            if at + 1 < len(values) and at + 1 not in chosen and moved not in met:
                met.add(moved)
                heapq.heappush(waiting, (total + values[at] - values[at + 1], moved))
