"""Asking a model about changed inputs: each once, many together, and never more than the budget allows."""

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
from .flip_criterion import Question

Changes = frozenset[int]  # which elements of an editor are made
#: answers that are nearer to the border than this many roundings are asked for again, one by one
ROUNDINGS = 100


class Spent(Exception):  # noqa: N818  # no error: the search ends where the budget does
    """As many inputs were tried as were allowed."""


class Asked:
    """What a model says of an input's changed forms.

    Args:
        explainer: holds the model.
        editor: makes the changed forms.
        question: says which answers are flipped.
        budget: how many inputs the models may be given.
        batch_size: how many are run together.

    Attributes:
        known: how far each set of changes that was tried is from flipping; above 0 it flips; minus infinity where
            nothing was left that could be read.
        logits: ``[classes]``, what the model said of each that could be read.
        tried: how many inputs were given to a model, by what for.
    """

    def __init__(self, explainer: Explainer, editor: Editor, question: Question, budget: int, batch_size: int) -> None:
        self.explainer = explainer
        self.editor = editor
        self.question = question
        self.budget = budget
        self.batch_size = batch_size
        self.known: dict[Changes, float] = {}
        self.logits: dict[Changes, Floats] = {}
        self.tried: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()

    @property
    def left(self) -> int:
        """How many inputs may still be tried."""
        return self.budget - self.tried.total()

    def ask(self, sets: Iterable[Changes], why: str) -> list[float]:
        """How far each set of changes is from flipping the prediction; above 0, it does.

        Raises:
            Spent: the budget did not reach for all. What was tried is known.
        """
        wanted = list(sets)
        new = [s for s in dict.fromkeys(wanted) if s not in self.known]
        for start in range(0, len(new), self.batch_size):
            self._run(new[start : start + self.batch_size], why)
        return [self.known[s] for s in wanted]

    def _run(self, sets: Sequence[Changes], why: str) -> None:
        readable: list[tuple[Changes, Sample]] = []
        for chosen in sets:
            sample = self.editor.sample(chosen)
            if sample is None:
                self._note(chosen, -math.inf)
            else:
                readable.append((chosen, sample))
        some = readable[: self.left]
        for places in batches([sample for _, sample in some], self.batch_size):
            self._answer([some[i] for i in places], why)
        if len(some) < len(readable):
            raise Spent

    def _answer(self, some: list[tuple[Changes, Sample]], why: str) -> None:
        """Run inputs of one shape together; what a batch's roundings could tip is run again by itself."""
        logits = logits_of(self.explainer, [sample for _, sample in some])
        self.tried[why] += len(some)
        near = ROUNDINGS * torch.finfo(next(self.explainer.model.parameters()).dtype).eps
        unsure: list[tuple[Changes, Sample]] = []
        for (chosen, sample), row in zip(some, logits, strict=True):
            margin = float(self.question.margins(row[None])[0])
            if len(some) == 1 or abs(margin) > near * np.abs(row[np.isfinite(row)]).max(initial=0.0):
                self._note(chosen, margin, row)
            else:
                unsure.append((chosen, sample))
        for one in unsure:
            if not self.left:
                raise Spent
            self._answer([one], why)

    def _note(self, chosen: Changes, margin: float, logits: Floats | None = None) -> None:
        self.known[chosen] = margin
        self._sizes[len(chosen)] += 1
        if logits is not None:
            self.logits[chosen] = logits

    # -- what the answers amount to ----------------------------------------------------------------------------------

    @property
    def best(self) -> Changes | None:
        """The smallest set known to flip the prediction; of several, one that is minimal, likely and clear."""
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
    def closest(self) -> Changes | None:
        """The set that came nearest to flipping it; of several, the smallest."""
        readable = [s for s in self.logits if s]
        return min(readable, key=lambda s: (-self.known[s], len(s), sorted(s))) if readable else None

    def minimal(self, chosen: Changes) -> bool:
        """Whether it is known of every proper subset that it does not flip the prediction."""
        if 2 ** len(chosen) - 2 > len(self.known):
            return False
        return all(self.known.get(s, 1.0) <= 0 for s in subsets(chosen))

    def irreducible(self, chosen: Changes) -> bool:
        """The same of every subset with one element less."""
        return len(chosen) == 1 or all(self.known.get(chosen - {i}, 1.0) <= 0 for i in chosen)

    def smallest(self, size: int) -> bool:
        """The same of every set of fewer elements than ``size``, whichever they are."""
        return not any(self.missing(fewer) for fewer in range(1, size))

    def missing(self, size: int) -> int:
        """How many sets of a size are not known."""
        return self.count(size) - self._sizes[size]

    def count(self, size: int) -> int:
        """How many sets of a size there are, with one element for each place at most."""
        ways = [1] + [0] * size  # the elementary symmetric polynomials of the numbers of elements at the places
        for options in Counter(self.editor.places).values():
            for k in range(size, 0, -1):
                ways[k] += options * ways[k - 1]
        return ways[size]


def subsets(chosen: Changes) -> Iterable[Changes]:
    """All proper subsets but the empty one, the smallest first."""
    ordered = sorted(chosen)
    return map(frozenset, chain.from_iterable(combinations(ordered, size) for size in range(1, len(ordered))))


def logits_of(explainer: Explainer, samples: Sequence[Sample]) -> Floats:
    """``[n, classes]``: what the model, run plainly, says of inputs of one shape.

    A model that answers at every position is asked where the sample says, or at its last token.
    """
    model, given = explainer.model, explainer.placed(collate(samples))
    with torch.no_grad(), undisturbed(model):
        outputs = model(given[""]) if list(given) == [""] else model(**given)
    found = find_logits(outputs)
    if found is not None and found.dim() == 3:
        at = [s.length - 1 if s.position is None else s.position for s in samples]
        found = found[torch.arange(len(at)), at]
    if found is None or found.dim() != 2 or len(found) != len(samples):
        raise InputError("The model gives no classes [batch, classes]: what it says of a changed input is unknown.")
    return as_floats(found)
