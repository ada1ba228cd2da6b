"""The view model: what a renderer is given, as plain numbers and strings, without models, tensors or explanations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..results.input_origin import Origin
from ..results.word_segmentation import Piece

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """One stream of tokens and its scores.

    Attributes:
        stream: its name: ``text``, ``image``, ``audio``, ``series``, ``input``, ...
        scores: ``[S]``, one per position.
        special: ``[S]``, positions that are no part of the user's input.
        origin: the user's own input, where it is known.
        pieces: for a text: words and the gaps between them, in order; joined, they are the text.
        tokens: for a text: the token at each position.
        heat: for an image: ``[height, width]``, scores laid on it in its own size.
        grid: for an image: height and width in patches; for a spectrogram: frequency bands and time steps; for a
            series: time steps and channels (1 if the scores are of all channels together).
        patches: the scores of the grid, ``[h, w]``, its first row on top.
        sources: for each word that has a score, or each patch, those that it attended to most: their indices among the
            words or patches, and the relevance that went there; empty without token-to-token relevance.
    """

    stream: str
    scores: Floats
    special: npt.NDArray[np.bool_]
    origin: Origin | None = None
    pieces: tuple[Piece, ...] = ()
    tokens: tuple[str, ...] = ()
    heat: Floats | None = None
    grid: tuple[int, int] | None = None
    patches: Floats | None = None
    sources: tuple[tuple[tuple[int, float], ...], ...] = ()

    def sources_of(self, i: int) -> tuple[int | None, tuple[tuple[int, float], ...]]:
        """Return the index of a word or patch and its sources; ``None`` and nothing where they are not known."""
        return (i, self.sources[i]) if self.sources else (None, ())


@dataclass(frozen=True)
class View:
    """One explanation of one sample: by one method, for one target.

    Attributes:
        method: its name.
        options: its options, in words.
        target: the target class or scalar.
        prediction: the predicted class.
        probability: of the prediction; ``None`` where the model gives none.
        target_probability: of the target.
        value: the target's value (its logit).
        panels: one per stream of tokens.
        limit: the score that gets full colour: the largest magnitude of any word, patch or position shown.
        signed: whether any score is negative.
        block_relevance: relevance entering each block, from the first to past the last, as a share of the target's;
            empty without a ledger.
        absorbed: the operations that absorbed relevance: name and share, the largest first.
        notes: caveats: truncated text, operations without a rule.
    """

    method: str
    options: str
    target: str
    prediction: str
    probability: float | None
    target_probability: float | None
    value: float
    panels: tuple[Panel, ...]
    limit: float
    signed: bool
    block_relevance: tuple[float, ...] = ()
    absorbed: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """All views of one input, shown side by side.

    Attributes:
        title: the input in a few words: a file's name, the beginning of a text.
        views: one per method and target.
    """

    title: str
    views: tuple[View, ...]

    @property
    def targets(self) -> int:
        """How many columns a table of methods by targets has; 1 if the views are no such table, or it is too wide."""
        names = list(dict.fromkeys(view.target for view in self.views))
        count = len(names)
        regular = all(view.target == names[i % count] for i, view in enumerate(self.views))
        return count if regular and 1 < count <= 4 and len(self.views) % count == 0 else 1


@dataclass(frozen=True, eq=False)
class ScoreGrid:
    """Scores with a name for each row and column.

    Attributes:
        title: its title.
        values: ``[rows, columns]``.
        rows, columns: the names of the rows and of the columns.
        down, across: the kind of the rows and of the columns: layer, head, token.
    """

    title: str
    values: Floats
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    down: str = ""
    across: str = ""

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.rows), len(self.columns)):
            raise InputError(
                f"A table of {self.values.shape} scores needs as many names: there are {len(self.rows)} of rows and "
                f"{len(self.columns)} of columns."
            )

    @property
    def limit(self) -> float:
        """The score that gets full colour."""
        return float(np.abs(self.values).max(initial=0.0))

    def strongest(self, k: int = 10) -> list[tuple[str, str, float]]:
        """Return the ``k`` strongest cells: row, column and score."""
        order = np.argsort(-np.abs(self.values), axis=None, kind="stable")[:k]
        places = [divmod(int(i), len(self.columns)) for i in order]
        return [(self.rows[r], self.columns[c], float(self.values[r, c])) for r, c in places]
