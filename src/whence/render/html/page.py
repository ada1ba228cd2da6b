"""Explanations as a self-contained HTML page, and as a fragment for notebooks."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

from ..view_model import Card
from .card import draw_card
from .markup import Markup, join, plain, tag
from .medium import Medium
from .shade import LEVELS, shade_rules

MANY = 5  # cards; more get a table of contents
SWATCHES = 4  # of each sign in the legend


def page(
    cards: Sequence[Card],
    title: str = "Where it came from",
    intro: Sequence[str] = (),
    sections: Sequence[Markup] = (),
) -> str:
    """Return a self-contained document: it needs no network and no other file.

    Args:
        cards: the cards, in order.
        title: its heading.
        intro: paragraphs below the heading.
        sections: further markup, before the cards.

    Example:
        >>> Path("why.html").write_text(page(e.cards(), intro=["Reviews of one film."]), encoding="utf-8")
    """
    medium = Medium(live=True)
    styled, live = style(), script()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(styled, live)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", plain(title)),
        tag("style", styled),
    )
    body = tag(
        "body",
        tag("header", tag("h1", tag("bdi", title)), *(tag("p", p) for p in intro), legend(cards, live=True)),
        *_contents(cards),
        tag("main", *sections, *(draw_card(card, medium, id=f"card-{i}") for i, card in enumerate(cards, 1))),
        tag("div", id="whence-tip", hidden=True, aria_hidden="true"),
        tag("div", id="whence-voice", class_="whence-unseen", role="status"),
        tag("script", live),
        class_="whence whence-page",
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def fragment(cards: Sequence[Card]) -> str:
    """Return the cards for a notebook: one element, without a script or styles that apply outside it.

    Example:
        >>> IPython.display.HTML(fragment(e.cards()))
    """
    medium = Medium(live=False)
    shown = [draw_card(card, medium) for card in cards]
    return tag("div", tag("style", style()), legend(cards, live=False), *shown, class_="whence whence-notebook")


def style() -> Markup:
    """Return the style sheet of pages and fragments."""
    return Markup(f"{shade_rules()}\n{_file('page.css')}")


def script() -> Markup:
    """Return the script of a live page: scores of the item pointed at, navigation with the arrow keys."""
    return Markup(_file("page.js"))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows the page's own style, script and embedded images only."""
    hashes = {
        kind: f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        for kind, content in (("style", style), ("script", script))
    }
    return (
        f"default-src 'none'; img-src data:; style-src {hashes['style']}; script-src {hashes['script']}; "
        "base-uri 'none'; form-action 'none'"
    )


def legend(cards: Sequence[Card], live: bool) -> Markup:
    """Return how to read the colours, and in a live page how to read scores."""
    signed = any(view.signed for card in cards for view in card.views)
    steps = [LEVELS * k // SWATCHES for k in range(1, SWATCHES + 1)]
    scale = [
        *([tag("span", "against"), *(_swatch(f"whence-a{step}") for step in reversed(steps))] if signed else []),
        _swatch(""),
        *(_swatch(f"whence-f{step}") for step in steps),
        tag("span", "for the target"),
    ]
    reading = (
        "Red speaks for the target, blue against it" if signed else "Red speaks for the target"
    ) + "; the stronger the colour, the more it counted. Every explanation has its own scale."
    pointing = " Point at a word or a patch, tap it, or walk with the arrow keys to read its score." if live else ""
    return tag(
        "div",
        tag("div", *scale, class_="whence-swatches", aria_hidden="true"),
        tag("p", reading + pointing),
        class_="whence-legend",
    )


def _swatch(shade: str) -> Markup:
    return tag("i", class_=shade or None)


def _contents(cards: Sequence[Card]) -> list[Markup]:
    if len(cards) <= MANY:
        return []
    entries = [tag("li", tag("a", tag("bdi", card.title), href=f"#card-{i}")) for i, card in enumerate(cards, 1)]
    return [tag("nav", tag("ol", join(entries)), aria_label="Contents", class_="whence-contents")]
