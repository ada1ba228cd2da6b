"""Where an explanation is shown: a page with a script of its own, or a notebook without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .markup import Markup, plain, tag
from .shade import number, signed


class Row(NamedTuple):
    """One thing that has a score.

    Attributes:
        label: its name in the table of the strongest.
        score: its score.
        number: of the thing in its panel, if others may have drawn on it.
        drew: the things that it drew on most: their numbers, and how much.
    """

    label: str
    score: float
    number: int | None = None
    drew: Sequence[tuple[int, float]] = ()

    def drawn_on(self) -> dict[str, object]:
        """Attributes for the script of a live page."""
        said = " ".join(f"{number}:{signed(amount)}" for number, amount in self.drew)
        return {"data_i": self.number, "data_drew": said or None}


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
        name: tells it apart from others on one page.
        pictures: pictures that the page already holds, with the id of each.
    """

    live: bool
    name: str = "picture"
    pictures: dict[str, str] = field(default_factory=dict)

    def item(self, name: str, text: str, row: Row, first: bool, more: str = "", **attributes: object) -> Markup:
        """Something in a text that says its score when it is pointed at."""
        if self.live:
            named = row.label if row.label != text else None
            said = {"data_s": signed(row.score), "data_label": named, "data_more": more or None}
            return tag(name, text, **attributes, **said, **row.drawn_on(), tabindex=0 if first else None)
        told = f"{row.label}: {number(row.score)}" + (f" ({more})" if more else "")
        return tag(name, text, **attributes, title=told)

    def rect(self, row: Row, first: bool, /, **attributes: object) -> Markup:
        """A rectangle of a drawing that says its score when it is pointed at."""
        if self.live:
            said = {"data_s": signed(row.score), "data_label": row.label, "tabindex": 0 if first else None}
            return tag("rect", class_="whence-item", **said, **row.drawn_on(), **attributes)
        title = tag("title", plain(f"{row.label}: {number(row.score)}"))
        return tag("rect", title, class_="whence-item", **attributes)

    def walk(self, noun: str, count: int, columns: int) -> dict[str, object]:
        """Attributes of what holds items: arrow keys walk in it, up and down by ``columns`` (0: only along)."""
        hint = "; arrow keys move between them" if self.live and count else ""
        said: dict[str, object] = {"role": "group", "aria_label": f"{count:,} {noun}{hint}"}
        return {**said, "data_walk": columns} if self.live else said
