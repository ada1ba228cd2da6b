"""The search for the smallest set of changes that flips a prediction.

First more and more of what the relevance names, until the prediction flips; then as much as possible is put back. In
the words of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 2002)
the flip is the failure, and what is left when no single change can be put back is 1-minimal. Small sets are then tried
subset by subset, and what is left of the budget goes to sets of fewer changes: all of them, if it reaches so far.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, islice, product

from .budgeted_inference import Asked, Changes, Spent, subsets

GROWTH = 1.25  # of the number of changes from one try to the next
TRIES = 64  # exchanges of two changes for one that are tried


class Search:
    """Looks for the smallest set of changes that flips a prediction; what it learns is in ``asked``.

    Args:
        asked: answers for sets of changes.
        relevance: per place, how much what is there speaks for what the model said.
    """

    def __init__(self, asked: Asked, relevance: Sequence[float]) -> None:
        self.asked = asked
        self.places = asked.editor.places
        self.order = sorted(range(len(self.places)), key=lambda i: -relevance[self.places[i]])

    def run(self) -> None:
        """Search until nothing smaller can be there, every way was gone, or the budget is spent."""
        steps: list[Callable[[], None]] = [
            self._by_relevance, self._by_effect, self._one_by_one, self._all_of_a_size, self._large_effects, self._swap,
            self._all_of_a_size, self._subsets,
        ]  # fmt: skip
        try:
            for step in steps:
                step()
                self._put_back()
                best = self.asked.best
                if best is not None and self.asked.smallest(len(best)):
                    return
        except Spent:
            return

    # -- sets that flip ----------------------------------------------------------------------------------------------

    def _by_relevance(self) -> None:
        """More and more of what speaks most for the prediction."""
        self._along(self._one_each(self.order), "in the order of relevance")

    def _by_effect(self) -> None:
        """Every change by itself; then more and more of those that move the model most."""
        effects = self._effects()
        self._along(self._one_each(sorted(effects, key=lambda i: -effects[i])), "in the order of their effects")

    def _one_by_one(self) -> None:
        """Again and again the change that moves the model most, given those that are made."""
        most = self._most()
        if self.asked.count(1) * most > self.asked.left // 2:
            return
        made: Changes = frozenset()
        for _ in range(most):
            taken = {self.places[i] for i in made}
            nexts = [made | {i} for i in self.order if self.places[i] not in taken]
            margins = self.asked.ask(nexts, "one after the other")
            made = nexts[margins.index(max(margins))]
            if max(margins) > 0 or max(margins) == -math.inf:
                return

    def _all_of_a_size(self) -> None:
        """All sets of two changes, of three, ...: all that are smaller, or if none flips as far as the budget goes."""
        sizes = range(2, self._most() + 1)
        if self.asked.best is not None and sum(map(self.asked.missing, sizes)) > self.asked.left:
            return
        effects = self._effects()
        for size in sizes:
            if self.asked.missing(size) > self.asked.left:
                return
            every = (c for c in combinations(effects, size) if len({self.places[i] for i in c}) == size)
            ordered = sorted(every, key=lambda c: -sum(effects[i] for i in c))
            if self._any_flips(map(frozenset, ordered), f"all sets of {size}"):
                return

    def _large_effects(self) -> None:
        """If nothing flips, sets of any size, those of the largest effects first; the sizes share the budget."""
        effects = self._effects()
        order = [i for i in self._one_each(sorted(effects, key=lambda i: -effects[i])) if effects[i] > -math.inf]
        values = [effects[i] for i in order]
        left = 0
        while self.asked.best is None and self.asked.left != left:
            left, sizes = self.asked.left, growing(len(order))
            for size in sizes:
                sets = (frozenset(order[k] for k in chosen) for chosen in likeliest(values, size))
                new = (s for s in sets if s not in self.asked.known)
                if self._any_flips(islice(new, max(1, left // len(sizes))), "sets of large effects"):
                    return

    # -- smaller ones ------------------------------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Undo changes of the best set, those that matter least first, until none can be undone."""
        while (best := self.asked.best) is not None and len(best) > 1:
            ordered = sorted(best)
            margins = self.asked.ask([best - {i} for i in ordered], "putting back")
            if max(margins) <= 0:
                return
            least = [i for _, i in sorted(zip(margins, ordered, strict=True), key=lambda pair: -pair[0])]
            self.asked.ask([best - set(least[:count]) for count in growing(len(best) - 1)], "putting back")

    def _subsets(self) -> None:
        """Every proper subset of the best set, the smallest first, if the budget reaches for all."""
        best = self.asked.best
        if best is None or 2 ** len(best) - 2 > self.asked.left + len(self.asked.known):
            return
        missing = [s for s in subsets(best) if s not in self.asked.known]
        if len(missing) <= self.asked.left:
            self._any_flips(missing, "subsets")

    def _swap(self) -> None:
        """Two changes of the best set put back for another one that is made, those likely to do it first."""
        while (best := self.asked.best) is not None and len(best) > 2:
            rests = [best - set(pair) for pair in combinations(sorted(best), 2)]
            margins = dict(zip(rests, self.asked.ask(rests, "putting back two"), strict=True))
            taken = {self.places[i] for i in best}
            effects = {i: effect for i, effect in self._effects().items() if self.places[i] not in taken}
            pairs = heapq.nlargest(TRIES, product(rests, effects), key=lambda pair: margins[pair[0]] + effects[pair[1]])
            if not self._any_flips((rest | {i} for rest, i in pairs), "two for one"):
                return
            self._put_back()

    # -- tools -------------------------------------------------------------------------------------------------------

    def _most(self) -> int:
        """How large a set may be to be of interest."""
        best = self.asked.best
        return len(set(self.places)) if best is None else len(best) - 1

    def _effects(self) -> dict[int, float]:
        """How far each change by itself moves the model."""
        margins = self.asked.ask([frozenset({i}) for i in self.order], "one alone")
        return dict(zip(self.order, margins, strict=True))

    def _one_each(self, order: Sequence[int]) -> list[int]:
        """An order with one change for each place: where there are several, the one of the largest effect."""
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
        """More and more of an order, until the prediction flips; then where exactly it did."""
        before = 0
        for count in growing(min(self._most(), len(order))):
            if self.asked.ask([frozenset(order[:count])], why)[0] > 0:
                self.asked.ask([frozenset(order[:n]) for n in range(before + 1, count)], why)
                return
            before = count

    def _any_flips(self, sets: Iterable[Changes], why: str) -> bool:
        """Whether one of several sets does; those after it are not tried."""
        waiting = iter(sets)
        while some := list(islice(waiting, self.asked.batch_size)):
            if max(self.asked.ask(some, why)) > 0:
                return True
        return False


def growing(most: int) -> list[int]:
    """Numbers from 1 to ``most``, first each, then fewer and fewer.

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
    """Sets of ``size`` places in ``values``, which descend: those of the largest sums first.

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
