"""Explanations as the user holds them: results that can be shown and saved, one or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import torch
from torch import Tensor

from .._utils import atomic_files
from ..errors import FileError, InputError, WhenceError
from ..render.view_model import Card
from ..results import serialization
from ..results.result import Result
from ..results.rows import to_array
from ..results.validation import first_fault
from . import plain_values
from .inside_tables import table
from .score_table import Table
from .view_builder import cards, view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap


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
    """A mixin that shows, saves and plots explanations, and hands them to other libraries."""

    __array_priority__ = 1000  # numpy leaves ``2 * e`` to the explanation, as to a tensor

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

    def to_pandas(self, by: str = "position") -> Any:
        """Return a tidy pandas data frame: one row per position, or per word.

        Columns that no row has are left out.

        - ``sample``: the number of the sample, counted over all explanations; ``method``, ``target``.
        - ``stream``, ``position``: the stream of tokens, and the position in it.
        - texts: ``token`` as the tokenizer writes it; ``text``, characters ``start`` to ``end`` of the user's own
          string (of a pair, of string number ``part``).
        - images: ``row`` and ``column`` of the patch, and its box ``left``, ``top``, ``right``, ``bottom`` in pixels of
          the user's image.
        - audio: ``start_second``, ``end_second``; series: ``start_step``, ``end_step``.
        - ``special``: whether the position is no part of the user's input; ``score``.

        Args:
            by: ``"position"``, so that the scores of a stream add up to those of the explanation; ``"word"``, a row for
                each word of a text, without special tokens (other inputs have a row for each position).

        Example:
            >>> e.to_pandas(by="word").sort_values("score")
        """
        return plain_values.to_pandas(self.results(), by)

    def plot(
        self,
        ax: Any = None,
        *,
        cmap: str | Colormap | None = None,
        alpha: float | None = None,
        size: tuple[float, float] | None = None,
        stream: str | None = None,
        limit: float | None = None,
    ) -> Axes | np.ndarray[Any, Any]:
        """Draw the scores on matplotlib axes, in the style that you have set there.

        A text is a bar for each word, an image is pale under its heat map, a waveform or a series is a line over bands
        of colour, anything else a bar for each position. Nothing is shown and pyplot's current figure stays what it is.

        Args:
            ax: axes to draw on; of several samples, one for each. ``None`` makes a new figure, one row for each sample.
            cmap: matplotlib's colour map, or its name, from minus the strongest score to the strongest (from 0 if no
                score is negative). ``None`` uses the colours of ``show`` and ``save``: red for the target, blue
                against it, transparent at 0.
            alpha: opacity of the scores' colours, 0 to 1.
            size: width and height in inches of the figure made where no axes are given.
            stream: the stream of tokens to draw; the first by default.
            limit: the score that gets full colour, to plot several explanations on one scale.

        Returns:
            The axes; of several samples, an array of them. ``axes.figure`` is the figure: it can be saved, and a
            notebook shows it. For a colour bar of an image, audio or series: ``figure.colorbar(axes.images[-1])``.

        Example:
            >>> e.plot().figure.savefig("why.png")
            >>> fig, ax = plt.subplots(1, 2)
            >>> e.plot(ax[0], cmap="coolwarm")
        """
        from ..render.figure.axes_plot import axes_for, chosen_panel, fitting, plot

        shown = [view(one) for result in self.results() for one in result]
        panels = [chosen_panel(v, stream) for v in shown]
        axes = axes_for(len(shown), ax, size or fitting(panels))
        for each, v, panel in zip(axes, shown, panels, strict=True):
            plot(each, v, panel, cmap, alpha, limit)
        return axes[0] if len(axes) == 1 and not isinstance(self, list) else np.array(axes, dtype=object)

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return :attr:`scores` as an array ``[B, S]``; those of bfloat16 become float32."""
        return to_array(self.scores, dtype, copy)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain Python values, which ``json.dumps`` takes: numbers, strings, lists, maps.

        For other programs to read; ``save("why.json")`` keeps every bit for :func:`whence.load`.

        Returns:
            ``method``, ``options``, ``task``, ``coverage`` (operations ``seen``, ``ruled``, ``plain``; ``share`` with a
            rule) and ``samples``, a list with, for each sample:

            - ``target``, ``target_index``, ``target_probability``, ``value`` (its logit), ``prediction``,
              ``prediction_index``, ``probability``;
            - ``streams``: for each stream its ``kind`` and ``words`` and ``tokens``, ``patches``, ``frames``, ``steps``
              or ``positions``, each with its ``score`` and its place (see :meth:`to_pandas`);
            - ``ledger``: ``total`` (relevance at the target), and as shares of it ``block_relevance`` (entering each
              block) and what the largest operations ``absorbed``; ``None`` of methods without a ledger;
            - ``notes``: caveats.

        Example:
            >>> import json
            >>> json.dumps(e.to_dict())
        """
        return plain_values.to_dict(self)

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

    @overload
    def __getitem__(self, index: SupportsIndex) -> Explanation: ...

    @overload
    def __getitem__(self, index: slice) -> Explanations: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Explanation | Explanations:
        """Return one explanation, or several, which can be shown, saved and plotted as well."""
        if isinstance(index, slice):
            return Explanations(super().__getitem__(index))
        return super().__getitem__(index)

    def results(self) -> list[Result]:
        """Return the explanations, in order."""
        return list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the scores of all samples, ``[samples, S]``; shorter ones are padded with 0 on the right."""
        if copy is False:
            raise ValueError("The scores of several explanations become one array only by a copy: use np.asarray.")
        rows = [row for e in self for row in to_array(e.scores)]
        out = np.zeros((len(rows), max(map(len, rows), default=0)), np.result_type(*rows) if rows else np.float32)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
        return out if dtype is None else out.astype(dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"explanations": [...]}``: see :meth:`Explanation.to_dict`."""
        return {"explanations": [e.to_dict() for e in self]}


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
