"""Questions about a scene, their answers, and the digits and words on which each answer rests.

    placed = scatter(load_mnist("t10k"), np.array([2]), rng)
    ask(placed, 0, "place", rng)
    # Question("place", "which digit is top left?", "7", (1,), ("top", "left"))

Three kinds: "place" names a quadrant that holds a digit, "presence" a class, half the time one of the scene, and
"sum" is for scenes of two digits. The digits of a scene differ, so that a sum is between 1 and 17.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tools.training.relations.quadrants import PLACES, QUADRANTS, Placed, scatter
from tools.training.scenes import ABSENT, Digits, Variation

KINDS = ("place", "presence", "sum")
ANSWERS = (*map(str, range(18)), "yes", "no")


class Question(NamedTuple):
    """A question of one of the `KINDS` and its right answer, one of the `ANSWERS`.

    places: the digits of the scene that one has to look at; none for a class that is not there
    words: the words of the text without which it would be another question
    """

    kind: str
    text: str
    answer: str
    places: tuple[int, ...]
    words: tuple[str, ...]


def ask(placed: Placed, scene: int, kind: str, rng: np.random.Generator) -> Question:
    """A random question of that kind about one of the scenes."""
    labels = placed.scenes.labels[scene]
    present = np.flatnonzero(labels != ABSENT)
    if kind == "place":
        place = int(rng.choice(present))
        where = QUADRANTS[placed.quadrants[scene, place]]
        return Question(kind, f"which digit is {where}?", str(labels[place]), (place,), tuple(where.split()))
    if kind == "presence":
        absent = np.setdiff1d(np.arange(10), labels)
        name = rng.choice(labels[present] if rng.random() < 0.5 else absent)
        places = tuple(np.flatnonzero(labels == name).tolist())
        return Question(kind, f"is there a {name}?", "yes" if places else "no", places, (str(name),))
    if kind == "sum" and len(present) == 2:
        return Question(kind, "sum of the two?", str(labels[present].sum()), tuple(present.tolist()), ("sum",))
    raise ValueError(f"No question of kind {kind!r} about {len(present)} digits; kinds are {', '.join(KINDS)}.")


def quiz(
    digits: Digits,
    count: int,
    rng: np.random.Generator,
    kinds: tuple[str, ...] = KINDS,
    variation: Variation | None = None,
) -> tuple[Placed, list[Question]]:
    """`count` scenes of two or three digits (two where the sum is asked) with a question each, kinds drawn evenly."""
    asked = rng.choice(kinds, count)
    sizes = np.where(asked == "sum", 2, rng.integers(2, PLACES + 1, count))
    placed = scatter(digits, sizes, rng, variation)
    return placed, [ask(placed, i, kind, rng) for i, kind in enumerate(asked.tolist())]
