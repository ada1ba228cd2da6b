"""A table of scores: layers by heads, layers by tokens, tokens by tokens, generated tokens by tokens."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._utils import atomic_files
from ..errors import InputError
from ..render.view_model import ScoreGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

ENDINGS = (".png", ".svg", ".pdf", ".html", ".csv")


class Table(ScoreGrid):
    """A table of scores, with a name for each row and column, that can be shown and saved.

    Example:
        >>> e.table("heads").save("heads.png")
    """

    def show(self) -> None:
        """Print it, in colour where there is a terminal."""
        from ..render.table_views import show

        show(self)

    def _repr_html_(self) -> str:
        from ..render.table_views import fragment

        return fragment(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the scores, ``[rows, columns]``."""
        return np.array(self.values, dtype=dtype, copy=copy)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        cmap: str | Colormap | None = None,
        alpha: float | None = None,
        size: tuple[float, float] | None = None,
        limit: float | None = None,
    ) -> Axes:
        """Draw the table on matplotlib axes: see ``Explanation.plot``."""
        from ..render.figure.axes_plot import axes_for
        from ..render.table_views import plot

        rows, columns = self.values.shape
        fitting = (min(16.0, max(4.0, 1.2 + 0.2 * columns)), min(16.0, max(2.0, 1.2 + 0.2 * rows)))
        (axes,) = axes_for(1, ax, size or fitting)
        plot(axes, self, cmap, alpha, limit)
        return axes

    def save(self, path: str | Path) -> Path:
        """Write it to a file of the format of its ending: ``.png``, ``.svg``, ``.pdf``, ``.html`` or ``.csv``."""
        from ..render import table_views

        path = Path(path)
        ending = path.suffix.lower()
        if ending not in ENDINGS:
            raise InputError(f"A table is not saved as '{path.name}': use one of the endings {', '.join(ENDINGS)}.")
        if ending == ".csv":
            atomic_files.write(path, self._csv().encode())
        elif ending == ".html":
            atomic_files.write(path, table_views.page(self).encode())
        else:
            atomic_files.write(path, table_views.draw(self, ending[1:]))
        return path

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["", *self.columns])
        writer.writerows([name, *map(repr, row.tolist())] for name, row in zip(self.rows, self.values, strict=True))
        return out.getvalue()
