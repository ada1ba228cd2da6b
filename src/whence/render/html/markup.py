"""HTML that is safe by construction: every string is escaped unless it is already markup."""

from __future__ import annotations

import re
from html import escape

#: invisible characters that change what is shown: controls, directions, zero widths, tags, lone surrogates
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
CLOSED = {"rect", "image", "path", "use", "line"}  # of SVG
VOID = {"meta", "input", "br", "img"}


class Markup(str):
    """A string of HTML that is already escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an element; children that are not markup are escaped, attributes that are ``None`` or false left out.

    Example:
        >>> tag("p", "a < b", class_="note", data_score=1)
        '<p class="note" data-score="1">a &lt; b</p>'
    """
    opening = "".join([name, *(_attribute(key, value) for key, value in attributes.items())])
    if name in VOID:
        return Markup(f"<{opening}>")
    if name in CLOSED and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(children)}</{name}>")


def join(children: list[Markup] | tuple[str, ...]) -> Markup:
    """Return markup and text, one after the other; text is escaped."""
    return Markup("".join(c if isinstance(c, Markup) else visible(c) for c in children))


def visible(text: str) -> Markup:
    """Escape a text; hidden characters are named in a box, so that the reader sees them.

    Example:
        >>> visible("a\\u202e<b>")
        'a<b class="whence-code">U+202E</b>&lt;b&gt;'
    """
    out: list[str] = []
    done = 0
    text = text.replace("\r\n", "\n")
    for found in HIDDEN.finditer(text):
        out += [escape(text[done : found.start()]), f'<b class="whence-code">{_name(found[0])}</b>']
        done = found.end()
    return Markup("".join([*out, escape(text[done:])]))


def plain(text: str) -> str:
    """Return a text for places that take no markup (attributes, the window's title); hidden characters are named."""
    return HIDDEN.sub(lambda found: f"[{_name(found[0])}]", text.replace("\r\n", "\n"))


def label(text: str) -> str:
    """Return a word for a table, where spaces and line ends would not be seen."""
    text = text.replace("\r\n", "\n").replace("\n", "↵").replace("\t", "⇥")
    return text if text.strip() else text.replace(" ", "␣") or "(empty)"


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(plain(str(value)), quote=True)}"'


def _name(character: str) -> str:
    return f"U+{ord(character):04X}"
