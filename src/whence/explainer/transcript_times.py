"""Where in the audio the words of a transcript come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..results.input_origin import AudioOrigin

Floats = npt.NDArray[np.float64]


class TimedWord(NamedTuple):
    """A word of a transcript, with the seconds of audio that it came from.

    Attributes:
        text: the word, without the space before it.
        start: where its audio begins, in seconds.
        end: where it ends.
    """

    text: str
    start: float
    end: float


def time_words(tokens: Sequence[str], relevance: Floats, audio: AudioOrigin, share: float) -> list[TimedWord]:
    """Return the words of a transcript, each with the shortest interval that holds a share of its positive relevance.

    Args:
        tokens: the tokens of the transcript, decoded.
        relevance: ``[tokens, positions]``, of each position of the audio for each token.
        audio: the audio.
        share: of the positive relevance inside the audio, above 0 and at most 1.
    """
    inside = relevance[:, : positions_inside(audio, relevance.shape[1])].clip(min=0)
    times = audio.times(relevance.shape[1])
    out = []
    for word in words_of(tokens):
        spoken = [i for i in word if any(c.isalnum() for c in tokens[i])] or word  # punctuation is heard as a pause
        first, last = shortest_interval(inside[spoken].sum(0), share)
        out.append(TimedWord("".join(tokens[i] for i in word).strip(), float(times[first, 0]), float(times[last, 1])))
    return out


def words_of(tokens: Sequence[str]) -> list[list[int]]:
    """Return the indices of the tokens of each word: a word begins with a space.

    Example:
        >>> words_of([" Amer", "icans", " ask"])
        [[0, 1], [2]]
    """
    words: list[list[int]] = []
    for i, token in enumerate(tokens):
        if not words or token[:1].isspace():
            words.append([])
        words[-1].append(i)
    return words


def positions_inside(audio: AudioOrigin, positions: int) -> int:
    """Return how many positions begin before the audio ends; what follows is padding."""
    return int((audio.times(positions)[:, 0] < audio.seconds).sum())


def in_columns(relevance: Floats, audio: AudioOrigin, most: int = 120) -> tuple[Floats, tuple[str, ...]]:
    """Sum relevance over equal intervals of the audio, padding left out.

    Args:
        relevance: ``[tokens, positions]``.
        audio: the audio.
        most: the largest number of intervals.

    Returns:
        ``[tokens, intervals]``, and the second at which each interval begins.
    """
    inside = positions_inside(audio, relevance.shape[1])
    width = -(-inside // most)
    starts = np.arange(0, inside, width)
    seconds = audio.times(relevance.shape[1])[starts, 0]
    return np.add.reduceat(relevance[:, :inside], starts, axis=1), tuple(f"{s:.2f}" for s in seconds)


def shortest_interval(amounts: Floats, share: float) -> tuple[int, int]:
    """Return the first and last position of the shortest interval that holds a share of nonnegative amounts.

    Example:
        >>> shortest_interval(np.array([1.0, 0.0, 4.0, 3.0]), 0.8)
        (2, 3)
    """
    sums = np.concatenate([[0.0], np.cumsum(amounts)])
    wanted = sums[:-1] + share * sums[-1] * (1 - 1e-12)
    ends = np.searchsorted(sums, wanted)  # the first end at which the interval from each start holds enough
    starts = np.flatnonzero(ends < len(sums))
    best = starts[np.argmin(ends[starts] - starts)]
    return int(best), max(int(ends[best]) - 1, int(best))
