"""The HTML page of a counterfactual: the changes marked in the input, and the explanation that ordered the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..explanations.view_builder import cards
from ..render.html.image import LARGEST, photo, shrink
from ..render.html.markup import Markup, join, tag, visible
from ..render.html.page import fragment as shown
from ..render.html.page import page as drawn
from ..render.html.text import direction
from ..results.input_origin import ImageOrigin, TextOrigin
from ..results.result import Patch
from ..results.word_segmentation import Word
from .edits import Change, changed_image, was_read

if TYPE_CHECKING:
    from .result import Counterfactual

INTRO = "What would have to be otherwise for the model to say something else. What is shown was checked by the model."


def page(found: Sequence[Counterfactual]) -> str:
    """Return one self-contained HTML document.

    Args:
        found: the counterfactuals, in order.
    """
    explanations = cards(one.explanation for one in found)
    return drawn(explanations, "What would change the answer", [INTRO], [section(one) for one in found])


def fragment(one: Counterfactual) -> str:
    """Return the HTML of one counterfactual for a notebook."""
    return tag("div", section(one), Markup(shown(cards([one.explanation]))), class_="whence whence-notebook")


def section(one: Counterfactual) -> Markup:
    """Return both predictions, the input with its changes marked, and what was tried."""
    head = tag("p", tag("strong", one.headline), class_="whence-answer")
    body = [_text(origin, one.changes) for origin in _origins(one) if isinstance(origin, TextOrigin)]
    body += [_image(origin, one) for origin in _origins(one) if isinstance(origin, ImageOrigin)]
    more = [tag("p", f"{said[:1].upper()}{said[1:]}.", class_="whence-small") for said in (one.certainty, one.effort)]
    return tag("section", head, *body, *more, class_="whence-card")


def _origins(one: Counterfactual) -> Iterator[object]:
    return (origin for origins in one.explanation.origins for origin in origins.values())


def _text(origin: TextOrigin, changes: Sequence[Change]) -> Markup:
    """Return the text that the model read: removed words struck through, new words underlined."""
    paragraphs = []
    for part, text in enumerate(origin.texts):
        own = [(c.unit, c.new) for c in changes if isinstance(c.unit, Word) and c.unit.part == part]
        out: list[Markup] = []
        done, end = was_read(origin, part)
        for word, new in sorted(own, key=lambda change: change[0].start):
            out += [visible(text[done : word.start]), tag("del", word.text)]
            out += [] if new is None else [visible(" "), tag("ins", new)]
            done = word.end
        paragraphs.append(tag("p", join(out), visible(text[done:end]), dir=direction([text])))
    return tag("div", *paragraphs, class_="whence-text")


def _image(origin: ImageOrigin, one: Counterfactual) -> Markup:
    """Return the image with its changed patches, each in a frame."""
    changed = changed_image(one.changed)
    height, width = origin.image.shape[:2]
    photograph = tag(
        "image",
        href=photo(shrink(origin.image if changed is None else changed, LARGEST)),
        width=width,
        height=height,
        preserveAspectRatio="none",
    )
    frames = []
    for unit in (change.unit for change in one.changes):
        if isinstance(unit, Patch) and unit.box is not None:
            left, top, right, bottom = unit.box
            box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
            frames.append(tag("rect", fill="none", stroke="#d00", stroke_width=max(height, width) / 300, **box))
    drawing = tag("svg", photograph, *frames, class_="whence-picture", viewBox=f"0 0 {width} {height}")
    return tag("div", drawing, class_="whence-panels")
