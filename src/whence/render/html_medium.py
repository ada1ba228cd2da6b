"""Where an explanation is shown: a page with a script of its own, or a notebook without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .html_markup import Markup, plain, tag
from .html_shade import number, signed


class Row(NamedTuple):
    """One thing that has a score: its name in the table of the strongest."""

    label: str
    score: float


class Drawn(NamedTuple):
    """A panel as markup, and what is in it: ``noun`` says what the rows are (words, patches, ...)."""

    markup: Markup
    rows: Sequence[Row]
    noun: str


@dataclass
class Medium:
    """A page is live: its script shows scores. A notebook shows them in the browser's own way.

    Attributes:
        live: whether there is a script.
        pictures: pictures that the page already holds, with the id of each.
    """

    live: bool
    pictures: dict[str, str] = field(default_factory=dict)

    def item(
        self, name: str, text: str, label: str, score: float, first: bool, more: str = "", **attributes: object
    ) -> Markup:
        """Something in a text that says its score when it is pointed at."""
        if self.live:
            named = label if label != text else None
            said = {"data_s": signed(score), "data_label": named, "data_more": more or None}
            return tag(name, text, **attributes, **said, tabindex=0 if first else None)
        return tag(name, text, **attributes, title=f"{label}: {number(score)}" + (f" ({more})" if more else ""))

    def rect(self, row: Row, first: bool, /, **attributes: object) -> Markup:
        """A rectangle of a drawing that says its score when it is pointed at."""
        if self.live:
            said = {"data_s": signed(row.score), "data_label": row.label, "tabindex": 0 if first else None}
            return tag("rect", class_="whence-item", **said, **attributes)
        title = tag("title", plain(f"{row.label}: {number(row.score)}"))
        return tag("rect", title, class_="whence-item", **attributes)

    def walk(self, noun: str, count: int, columns: int) -> dict[str, object]:
        """Attributes of what holds items: arrow keys walk in it, up and down by ``columns`` (0: only along)."""
        hint = "; arrow keys move between them" if self.live and count else ""
        said: dict[str, object] = {"role": "group", "aria_label": f"{count:,} {noun}{hint}"}
        return {**said, "data_walk": columns} if self.live else said
