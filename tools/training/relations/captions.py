"""Captions that name two of the three digits of a scene, and which of them are true of which scene.

placed = scatter(load_mnist("t10k"), np.full(10, 3), rng)
true(placed)  # bool [scenes, captions]
CAPTIONS[100].text  # 'a 1 on the left and a 2 on the right'
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np

from tools.training.relations.quadrants import Placed


class Caption(NamedTuple):
    """Two digits, and whether the first is said to be on the left and the second on the right."""

    first: int
    second: int
    sided: bool

    @property
    def text(self) -> str:
        """The caption in words."""
        if self.sided:
            return f"a {self.first} on the left and a {self.second} on the right"
        return f"a {self.first} and a {self.second}"

    @property
    def words(self) -> tuple[str, ...]:
        """The words without which it would be another caption."""
        return (str(self.first), str(self.second), *(("left", "right") if self.sided else ()))


CAPTIONS = tuple(Caption(a, b, sided) for sided in (False, True) for a, b in permutations(range(10), 2))


def true(placed: Placed) -> np.ndarray:
    """Which of the `CAPTIONS` are true of each scene, bool [scenes, captions]."""
    named = placed.scenes.labels[:, :, None] == np.arange(10)  # [scenes, places, classes]
    right = placed.quadrants[:, :, None] % 2 == 1
    there, on_left, on_right = named.any(axis=1), (named & ~right).any(axis=1), (named & right).any(axis=1)
    columns = [
        on_left[:, c.first] & on_right[:, c.second] if c.sided else there[:, c.first] & there[:, c.second]
        for c in CAPTIONS
    ]
    return np.stack(columns, axis=1)


def rivals(chosen: int, truth: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` false captions that differ in one digit from the chosen one; truth is bool [captions] of the scene."""
    one = CAPTIONS[chosen]
    near = [
        other.sided == one.sided and (other.first == one.first) != (other.second == one.second) for other in CAPTIONS
    ]
    return rng.choice(np.flatnonzero(near & ~truth), count, replace=False)
