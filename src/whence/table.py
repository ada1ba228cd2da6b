"""A table of scores: layers by heads, layers by tokens, tokens by tokens, tokens written by tokens read."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import files
from .errors import InputError
from .view import Floats

ENDINGS = (".png", ".svg", ".pdf", ".html", ".csv")


@dataclass(frozen=True, eq=False)
class Table:
    """Scores with a name for each row and column.

    Attributes:
        title: what it shows.
        values: ``[rows, columns]``.
        rows, columns: their names.
        down, across: what the rows and the columns are.

    Example:
        >>> e.table("heads").save("heads.png")
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
        """The ``k`` strongest cells: row, column and score."""
        order = np.argsort(-np.abs(self.values), axis=None, kind="stable")[:k]
        places = [divmod(int(i), len(self.columns)) for i in order]
        return [(self.rows[r], self.columns[c], float(self.values[r, c])) for r, c in places]

    def show(self) -> None:
        """Print it, in colour where there is a terminal."""
        from .render.grid import show

        show(self)

    def _repr_html_(self) -> str:
        from .render.grid import fragment

        return fragment(self)

    def save(self, path: str | Path) -> Path:
        """Write it to a file; its ending says how: ``.png``, ``.svg``, ``.pdf``, ``.html`` or ``.csv``."""
        from .render import grid

        path, ending = Path(path), Path(path).suffix.lower()
        if ending not in ENDINGS:
            raise InputError(f"A table is not saved as '{path.name}': use one of the endings {', '.join(ENDINGS)}.")
        if ending == ".csv":
            files.write(path, self._csv().encode())
        elif ending == ".html":
            files.write(path, grid.page(self).encode())
        else:
            files.write(path, grid.draw(self, ending[1:]))
        return path

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["", *self.columns])
        writer.writerows([name, *map(repr, row.tolist())] for name, row in zip(self.rows, self.values, strict=True))
        return out.getvalue()
