"""Explanations as the user holds them: results that can be shown and saved, one or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .._utils import atomic_files
from ..errors import FileError, InputError, WhenceError
from ..render.view_model import Card
from ..results import serialization
from ..results.result import Result
from ..results.validation import first_fault
from .inside_tables import table
from .score_table import Table
from .view_builder import cards


def _figure(kind: str) -> Callable[[list[Card]], bytes]:
    def render(shown: list[Card]) -> bytes:
        from ..render.figure.figure import draw

        return draw(shown, kind)

    return render


def _page(shown: list[Card]) -> bytes:
    from ..render.html.page import page

    return page(shown).encode()


def _latex(shown: list[Card]) -> bytes:
    from ..render.latex import document

    return document(shown).encode()


#: renderers by file ending
RENDERERS: dict[str, Callable[[list[Card]], bytes]] = {
    ".html": _page, ".png": _figure("png"), ".svg": _figure("svg"), ".pdf": _figure("pdf"), ".tex": _latex,
}  # fmt: skip


class DisplayMixin:
    """A mixin that shows and saves explanations."""

    def results(self) -> list[Result]:
        """Return the results to show, in order."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it shows.")

    def show(self) -> None:
        """Print it, in colour where there is a terminal."""
        from ..render.terminal import show

        show(cards(self.results()))

    def _repr_html_(self) -> str:
        from ..render.html.page import fragment

        return fragment(cards(self.results()))

    def drawn(self, ending: str) -> bytes:
        """Return the content of a figure, page or LaTeX document of it."""
        return RENDERERS[ending](cards(self.results()))

    def save(self, path: str | Path) -> Path:
        """Write it to a file, atomically.

        Args:
            path: its ending is the format: ``.html`` (a self-contained page), ``.png``, ``.svg``, ``.pdf``, ``.tex``;
                ``.json`` and ``.safetensors`` can be read again with :func:`whence.load`.

        Returns:
            The path.

        Example:
            >>> e.save("why.html")
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending not in serialization.WRITERS and ending not in RENDERERS:
            known = ", ".join([*RENDERERS, *serialization.WRITERS])
            raise InputError(f"Explanations are not saved as '{path.name}': use one of the endings {known}.")
        atomic_files.write(path, self.content(ending))
        return path

    def content(self, ending: str) -> bytes:
        """Return the bytes that :meth:`save` writes into a file of that ending.

        Example:
            >>> e.content(".html")
        """
        if ending in serialization.WRITERS:
            return serialization.WRITERS[ending]([result.record() for result in self.results()])
        return self.drawn(ending)


class Explanation(DisplayMixin, Result):
    """The explanation of a batch of B samples: its scores, targets and diagnostics (see :class:`Result` for fields).

    Example:
        >>> e = explainer("a gripping film")
        >>> e.words[0]
        [Word(text='a', score=0.02, start=0, end=1, part=0), ...]
        >>> e.save("why.html")
    """

    def results(self) -> list[Result]:
        """Return the explanation itself, as a list."""
        return [self]

    def layer(self, number: int) -> Explanation:
        """Return the relevance that entered one block, as an explanation.

        Args:
            number: index of the block, 0 for the first; negative numbers count from the end.

        Example:
            >>> explainer("a gripping film").layer(3).show()
        """
        if self.layers is None:
            raise WhenceError(f"'{self.method}' does not say what entered each block.")
        count = self.layers.shape[1]
        if not isinstance(number, int) or not -count <= number < count:
            raise InputError(f"There is no layer {number!r}: the model has {count}, from 0 to {count - 1}.")
        at = number % count
        scores = self.layers[:, at]
        return replace(
            self, scores=scores, streams=self._split_streams(scores), ledger=None, layers=None, heads=None,
            branches=None, pairs=None if self.pairs is None else self.pairs[:, at : at + 1],
            options={**self.options, "layer": at},
        )  # fmt: skip

    def _split_streams(self, scores: Tensor) -> dict[str, Tensor]:
        """Split scores of the sequence that the blocks read into streams: one, or those that it concatenates."""
        first, *others = self.streams
        if self.streams[first].shape == scores.shape:
            return {first: scores}
        joined = torch.cat(list(self.streams.values()), 1)
        if not others or joined.shape != scores.shape:
            raise WhenceError("The blocks read several streams of tokens: what entered one is no explanation of all.")
        return dict(zip(self.streams, scores.split([s.shape[1] for s in self.streams.values()], 1), strict=True))

    def table(self, what: str = "heads", layer: int | None = None, sample: int = 0) -> Table:
        """Return relevance inside the model as a table: see :meth:`Table.show`, :meth:`Table.save`.

        Args:
            what: ``"heads"`` (layers by heads), ``"layers"`` (relevance entering each block, by tokens),
                ``"branches"`` (relevance of each block's residual branches: attention and the rest) or ``"pairs"``
                (token-to-token relevance of one layer). The last two need ``inside=True`` when the input is explained.
            layer: the layer of ``"pairs"``.
            sample: the index in the batch.

        Example:
            >>> explainer("a gripping film").table("heads").save("heads.png")
        """
        if not isinstance(sample, int) or not -len(self) <= sample < len(self):
            raise InputError(f"There is no sample {sample!r}: the explanation has {len(self)}, from 0.")
        return table(self[sample], what, layer)


class Explanations(DisplayMixin, list[Explanation]):
    """Several explanations: of many inputs, or of one input by several methods or for several targets.

    Example:
        >>> several = explainer.compare("a gripping film", methods=["conservative-lrp", "generic-attention"])
        >>> several.save("report.html")
    """

    def __init__(self, explanations: Iterable[Explanation] = ()) -> None:
        super().__init__(explanations)

    def results(self) -> list[Result]:
        """Return the explanations, in order."""
        return list(self)


def load(path: str | Path) -> Explanation | Explanations:
    """Read explanations that :meth:`Explanation.save` wrote as ``.json`` or ``.safetensors``: equal to those saved.

    Returns:
        An explanation, or a list of them if several were saved together.

    Example:
        >>> e.save("why.json")
        >>> whence.load("why.json") == e
        True
    """
    records = serialization.read(path)
    try:
        found = [Explanation.of(record) for record in records]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise FileError(f"'{path}' is damaged: {error}.") from error
    for why in filter(None, map(first_fault, found)):
        raise FileError(f"'{path}' is damaged: {why}.")
    return found[0] if len(found) == 1 else Explanations(found)
