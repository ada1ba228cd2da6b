"""What the page shows, as markup: everything a visitor wrote goes through :func:`tag`, which escapes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..evaluation.random_order_test import Trial
from ..explainer.generation import Generation
from ..explanations.explanation import Explanation
from ..explanations.view_builder import cards, view
from ..localisation import Detection
from ..methods.registry import list_methods as all_methods
from ..render.html.card import draw_card, draw_taken
from ..render.html.chart import draw_kept
from ..render.html.image import LARGEST, photo, shrink
from ..render.html.markup import Markup, join, label, tag
from ..render.html.medium import Medium
from ..render.html.page import legend
from ..render.phrases import percent
from ..render.score_table import section
from ..render.view_model import Card
from ..results.input_origin import ImageOrigin
from .model_registry import Served
from .query_result import Classified, Detected, Found, Outcome, Written

ANSWERS = 5  # classes whose probability is shown
NONE = "no other"  # answer
FIT = "similarity"  # the target of models that compare a picture with a text
KEPT = 50  # classes whose probability is known later, when the input has changed


def island(*children: str, class_name: str = "") -> Markup:
    """What wears Whence's own style."""
    return tag("div", *children, class_=f"whence whence-island {class_name}".rstrip())


def said(text: str, kind: str = "note") -> Markup:
    """A line about what is going on: a note, work (which changes too often to be read out), or a problem."""
    role = {"problem": "alert", "note": "status"}.get(kind)
    return island(tag("p", text, class_=f"whence-said whence-{kind}", role=role)) if text else Markup("")


def method_words(names: Sequence[str]) -> Markup:
    """What the chosen methods show, and when not to trust them."""
    known = all_methods()
    rows = [
        tag("div", tag("dt", name), tag("dd", known[name].shows, " ", tag("em", known[name].beware)))
        for name in names if name in known and known[name].shows
    ]  # fmt: skip
    return island(tag("dl", *rows, class_="whence-words")) if rows else Markup("")


# -- answers ---------------------------------------------------------------------------------------------------------


def chances(outcome: Outcome) -> dict[str, float]:
    """The probability of the likeliest classes, by their names; empty where the model gives none."""
    if not isinstance(outcome, Classified) or not outcome.explanations:
        return {}
    e = outcome.explanations[0]
    found = e.probabilities
    if found is None or found.dim() != 2:
        return {}
    names = {i: e.labels.get(i, str(i)) for i in range(found.shape[1])}
    if e.prediction is not None and not e.labels and e.prediction_names:
        names[int(e.prediction[0])] = e.prediction_names[0]
    likeliest = found[0].topk(min(KEPT, found.shape[1])).indices.tolist()
    return {names[i]: float(found[0, i]) for i in likeliest}


def answer(outcome: Outcome, before: Mapping[str, float]) -> Markup:
    """What the model says, with probabilities, and what it said before."""
    now = chances(outcome)
    if not now:
        return _number(outcome)
    ranked = sorted(now, key=lambda name: -now[name])[:ANSWERS]
    first = next(iter(outcome.explanations[0].prediction_names), ranked[0])
    rows = []
    for name in ranked:
        was = before.get(name)
        mark = [tag("i", style=f"left:{100 * was:.1f}%", title=f"before: {percent(was)}")] if was is not None else []
        change = "" if was is None or abs(was - now[name]) < 0.005 else f"was {percent(was)}"
        bar = tag("span", tag("b", style=f"width:{100 * now[name]:.1f}%"), *mark, class_="whence-bar")
        rows.append(
            tag("tr", tag("th", tag("bdi", name), scope="row"), tag("td", bar), tag("td", percent(now[name])),
                tag("td", change, class_="whence-was"))
        )  # fmt: skip
    head = tag("h2", "The model says ", tag("strong", tag("bdi", first)))
    caption = tag("caption", "Probability of each answer", class_="whence-unseen")
    return island(head, tag("table", caption, *rows, class_="whence-chances"))


def _number(outcome: Outcome) -> Markup:
    """What a model says that gives no probabilities: a number."""
    if not isinstance(outcome, Classified) or not outcome.explanations:
        return Markup("")
    e = outcome.explanations[0]
    lead = "How well picture and text fit, as the model sees it: " if e.target_names == (FIT,) else "The model says "
    return island(*(tag("h2", lead, tag("strong", tag("bdi", name))) for name in e.prediction_names[:1]))


def explained(found: Sequence[Found]) -> Markup:
    """Every explanation, side by side, as in the HTML export; methods that refused say why."""
    shown = cards(e for one in found for e in one.explanations)
    refused = [said(f"{one.method}: {one.refused}", "problem") for one in found if one.refused]
    return drawn(shown, "main", refused)


def shown(outcome: Outcome) -> Markup:
    """What a question came to."""
    if isinstance(outcome, Classified):
        if outcome.word is None:
            return explained(outcome.found)
        word = outcome.words[outcome.question.chosen].text
        return join([drawn([Card(f"The word '{word}'", (view(outcome.word),))], "word"), explained(outcome.found)])
    assert isinstance(outcome, Written | Detected)
    refused = [said(f"{one.method}: {one.refused}", "problem") for one in outcome.refused]
    views = tuple(view(e) for e in outcome.explanations)
    return drawn([Card(label(views[0].target), views)] if views else [], "chosen", refused)


def choice(outcome: Outcome) -> Markup:
    """What can be chosen in it: tokens written, objects found, words beside a picture."""
    if isinstance(outcome, Written):
        return tokens(outcome.generation, outcome.chosen)
    if isinstance(outcome, Detected):
        return objects(outcome.objects, outcome.picture, outcome.chosen)
    if isinstance(outcome, Classified) and outcome.words:
        return word_choice([p.text for p in outcome.words], outcome.question.chosen)
    return Markup("")


def empty() -> Markup:
    """Where nothing was asked yet."""
    return island(tag("p", "The explanation appears here.", class_="whence-nothing"))


def drawn(shown: Sequence[Card], name: str, before: Sequence[Markup] = ()) -> Markup:
    """Cards with their legend; ``name`` tells apart the islands of a page."""
    if not shown:
        return island(*before) if before else Markup("")
    medium = Medium(live=True, name=name)
    return island(
        *before, legend(shown, live=True), *(draw_card(card, medium) for card in shown), class_name=f"whence-of-{name}"
    )


def layer(e: Explanation, number: int) -> Markup:
    """The relevance that entered one block."""
    if e.layers is None:
        return said(f"'{e.method}' does not say what entered each block.")
    card = Card(f"Entering layer {number}", (view(e.layer(number)),))
    return island(draw_card(card, Medium(live=True, name="layer")), class_name="whence-of-layer")


def heads(e: Explanation) -> Markup:
    """What each head carried."""
    if e.heads is None:
        return said(f"'{e.method}' does not say what each head carried.")
    lead = "Each layer has several heads, which look at the input in ways of their own. Point at one to read its share."
    return island(tag("h3", "What each head carried"), tag("p", lead), section(e.table("heads")))


def ledger(e: Explanation) -> Markup:
    """How much of the answer's value was kept at each layer."""
    one = view(e)
    if not one.kept:
        return said(
            f"'{e.method}' keeps no books: it does not hand back the answer's value, so there is nothing to add up."
        )
    took = tag("details", tag("summary", "What took the rest"), draw_taken(one))
    return island(
        tag("h3", "How much of the answer's value was kept"), tag("p", in_words(one.kept[0])), draw_kept(one.kept),
        *([took] if one.absorbed else []),
    )  # fmt: skip


def in_words(kept: float) -> str:
    """What the books mean for a reader."""
    if 0.8 <= kept <= 1.25:
        return "Nearly all of the answer's value can be handed to words or patches: the scores add up."
    if 0 < kept < 0.8:
        return (
            f"About {percent(1 - kept)} of the answer's value comes from constants inside the model, whatever the "
            "input: the scores share out the rest."
        )
    if kept <= 0:
        return "The words or patches together speak against the answer: it rests on constants inside the model."
    return "The scores add up to more than the answer's value: constants inside the model speak against it."


def trial_of(found: Trial) -> Markup:
    """The activation curve against random orders."""
    low, high = np.quantile(found.random, [0.05, 0.95], axis=0)
    top = max(1e-9, float(max(found.curve.max(), found.random.max())), 1.0)

    def path(values: Sequence[float], back: bool = False) -> str:
        points = [f"{300 * x:.1f} {150 * (1 - y / top):.1f}" for x, y in zip(found.shares, values, strict=True)]
        return "L".join(reversed(points) if back else points)

    grid = [tag("path", d=f"M0 {y}H300", class_="whence-grid") for y in (0, 75, 150)]
    drawing = tag(
        "svg",
        *grid,
        tag("path", d=f"M{path(low.tolist())}L{path(high.tolist(), back=True)}Z", class_="whence-band"),
        tag("path", d=f"M{path(found.random.mean(0).tolist())}", class_="whence-line whence-chance"),
        tag("path", d=f"M{path(found.curve.tolist())}", class_="whence-line whence-own"),
        viewBox="-2 -4 304 158", class_="whence-trial", role="img", aria_label=str(found),
    )  # fmt: skip
    up = tag("div", *(tag("span", percent(top * share)) for share in (1, 0.5, 0)), class_="whence-up")
    along = tag("div", *(tag("span", words) for words in ("none", "half", "all")), class_="whence-along")
    keys = [
        tag("span", tag("i", class_="whence-own"), "this explanation's order"),
        tag("span", tag("i", class_="whence-chance"), f"{len(found.random)} random orders: mean, and 90 % of them"),
    ]
    axis = f"Probability of the answer as more {found.noun} are put in"
    return island(
        tag("h3", "Does the model bear it out?"), tag("p", str(found)), tag("p", axis, class_="whence-small"),
        tag("div", up, drawing, along, class_="whence-plot"), tag("p", *keys, class_="whence-keys"),
    )  # fmt: skip


# -- things to choose from -------------------------------------------------------------------------------------------


def examples(served: Served) -> Markup:
    """Examples as buttons: texts by their beginnings, pictures as they are."""
    texts = [
        tag("button", _short(text), type="button", title=text, data_ask=f"text:{i}")
        for i, text in enumerate(served.texts)
    ]
    pictures = [
        tag("button", tag("img", src=_thumbnail(path), alt=name), type="button", data_ask=f"picture:{name}")
        for name, path in served.pictures.items()
    ]
    chosen = (texts if served.reads_text else []) + (pictures if served.reads_picture else [])
    return (
        island(tag("p", "Or try one of these", class_="whence-small"), tag("div", *chosen, class_="whence-chips"))
        if chosen
        else Markup("")
    )


def tokens(generation: Generation, chosen: int) -> Markup:
    """What a language model wrote, each token a button."""
    buttons = [_button(label(text), i, chosen) for i, text in enumerate(generation.tokens)]
    lead = tag("p", "The model went on with these tokens. Choose one to see what it came from.")
    return island(tag("h2", "What the model wrote"), lead, tag("div", *buttons, class_="whence-tokens"))


def objects(found: Sequence[Detection], picture: ImageOrigin, chosen: int) -> Markup:
    """A picture with the objects that were found in it, each a button."""
    height, width = picture.image.shape[:2]
    frames = []
    for i, one in enumerate(found):
        left, top, right, bottom = one.box
        box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        kind = "whence-object whence-chosen" if i == chosen else "whence-object"
        frames.append(tag("rect", tag("title", one.label), class_=kind, data_ask=i, **box))
    image = tag("image", href=photo(shrink(picture.image, LARGEST // 2)), width=width, height=height)
    drawing = tag("svg", image, *frames, viewBox=f"0 0 {width} {height}", class_="whence-picture")
    buttons = [_button(f"{one.label} ({percent(one.score)})", i, chosen) for i, one in enumerate(found)]
    lead = "Choose an object to see what it rests on." if found else "The model finds no object in this picture."
    return island(
        tag("h2", "What the model finds"), tag("p", lead), drawing, tag("div", *buttons, class_="whence-chips")
    )


def word_choice(words: Sequence[str], chosen: int) -> Markup:
    """The words of a text beside a picture, each a button."""
    lead = tag("p", "Choose a word to see where in the picture it points.")
    return island(lead, tag("div", *(_button(label(w), i, chosen) for i, w in enumerate(words)), class_="whence-chips"))


def _button(text: str, number: int, chosen: int) -> Markup:
    return tag("button", text, type="button", data_ask=number, aria_pressed="true" if number == chosen else "false")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def _thumbnail(path: object) -> str:
    from PIL import Image

    with Image.open(str(path)) as opened:
        picture = opened.convert("RGB")
        picture.thumbnail((128, 128))
        return photo(np.asarray(picture, np.float32))
