"""What a page shows."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "input", "br"}


class Element:
    """A tag with its attributes, its text, and the elements in it."""

    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name, self.attributes, self.inside = name, attributes, []

    def all(self, name: str = "", classed: str = "") -> list[Element]:
        found = []
        for child in self.inside:
            if isinstance(child, Element):
                classes = (child.attributes.get("class") or "").split()
                if (not name or child.name == name) and (not classed or classed in classes):
                    found.append(child)
                found += child.all(name, classed)
        return found

    def text(self) -> str:
        """What the user wrote: boxes that name a hidden character are that character again."""
        said = "".join(c if isinstance(c, str) else c.text() for c in self.inside)
        return chr(int(said[2:], 16)) if self.attributes.get("class") == "whence-code" else said

    def seen(self) -> str:
        return "".join(c if isinstance(c, str) else c.seen() for c in self.inside)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]

    def handle_starttag(self, name, attributes):
        element = Element(name, dict(attributes))
        self.open[-1].inside.append(element)
        if name not in VOID:
            self.open.append(element)

    def handle_startendtag(self, name, attributes):
        self.open[-1].inside.append(Element(name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop().name == name

    def handle_data(self, text):
        self.open[-1].inside.append(text)


def read(html: str) -> Element:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, "an element is not closed"
    return reader.open[0]
