"""The medium that a panel is drawn for: a page with a script, or a notebook without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .markup import Markup, plain, tag
from .shade import number, signed


class ScoredItem(NamedTuple):
    """A word, patch, moment or position with its score.

    Attributes:
        label: its name in the table of the strongest items.
        score: its score.
        number: its index in the panel; ``None`` where token-to-token relevance is not known.
        sources: the items that it attended to most: their indices, and the relevance that went there.
    """

    label: str
    score: float
    number: int | None = None
    sources: Sequence[tuple[int, float]] = ()

    def source_attributes(self) -> dict[str, object]:
        """Return the attributes by which the page's script marks the sources."""
        amounts = " ".join(f"{number}:{signed(amount)}" for number, amount in self.sources)
        return {"data_i": self.number, "data_drew": amounts or None}


class PanelMarkup(NamedTuple):
    """A panel as markup, and the items in it; ``noun`` names their kind (words, patches, ...)."""

    markup: Markup
    items: Sequence[ScoredItem]
    noun: str


@dataclass
class Medium:
    """A live page, whose script shows scores; or a notebook, where the browser's own tooltips do.

    Attributes:
        live: whether there is a script.
        name: a prefix for ids, distinct from that of other media on the same page.
        pictures: ids of the images that the page already holds, by their hash.
    """

    live: bool
    name: str = "picture"
    pictures: dict[str, str] = field(default_factory=dict)

    def item(self, name: str, text: str, item: ScoredItem, first: bool, more: str = "", **attributes: object) -> Markup:
        """Return an element of a text that shows its score when it is pointed at.

        Args:
            name: of the element.
            text: its content.
            item: its label and score.
            first: whether the tab key reaches it.
            more: a further line of its tooltip.
            attributes: of the element.
        """
        if self.live:
            named = item.label if item.label != text else None
            data = {"data_s": signed(item.score), "data_label": named, "data_more": more or None}
            return tag(name, text, **attributes, **data, **item.source_attributes(), tabindex=0 if first else None)
        tooltip = f"{item.label}: {number(item.score)}" + (f" ({more})" if more else "")
        return tag(name, text, **attributes, title=tooltip)

    def rect(self, item: ScoredItem, first: bool, /, **attributes: object) -> Markup:
        """Return a rectangle of a drawing that shows its score when it is pointed at."""
        if self.live:
            data = {"data_s": signed(item.score), "data_label": item.label, "tabindex": 0 if first else None}
            return tag("rect", class_="whence-item", **data, **item.source_attributes(), **attributes)
        title = tag("title", plain(f"{item.label}: {number(item.score)}"))
        return tag("rect", title, class_="whence-item", **attributes)

    def group_attributes(self, noun: str, count: int, columns: int) -> dict[str, object]:
        """Return the attributes of an element that holds items.

        Args:
            noun: the kind of items.
            count: how many there are.
            columns: how far the arrow keys move up and down; 0: only to the left and right.
        """
        hint = "; arrow keys move between them" if self.live and count else ""
        group: dict[str, object] = {"role": "group", "aria_label": f"{count:,} {noun}{hint}"}
        return {**group, "data_walk": columns} if self.live else group
