"""The HTML of the page. All text goes through :func:`tag`, which escapes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..evaluation.random_order_test import Trial
from ..explainer.generation import Generation
from ..explanations.explanation import Explanation
from ..explanations.view_builder import cards, view
from ..localisation import Detection
from ..methods.registry import list_methods
from ..render.html.card import draw_absorbed, draw_card
from ..render.html.chart import draw_block_relevance
from ..render.html.image import LARGEST, photo, shrink
from ..render.html.markup import Markup, join, label, tag
from ..render.html.medium import Medium
from ..render.html.page import legend
from ..render.phrases import percent
from ..render.table_views import section
from ..render.view_model import Card
from ..results.input_origin import ImageOrigin
from .model_registry import ServedModel
from .query_result import ClassificationResult, DetectionResult, GenerationResult, MethodResult, QueryResult

SHOWN_CLASSES = 5  # classes whose probability is shown
COMPARED_CLASSES = 50  # classes whose probability is compared with that of the next input
NO_SECOND_TARGET = "no other"
SIMILARITY = "similarity"  # the target of models that compare an image with a text


def island(*children: str, class_name: str = "") -> Markup:
    """Return a container with Whence's own style, independent of Gradio's."""
    return tag("div", *children, class_=f"whence whence-island {class_name}".rstrip())


def message(text: str, kind: str = "note") -> Markup:
    """Return a status line: a ``note``, ``work`` (progress, which screen readers skip) or a ``problem``."""
    role = {"problem": "alert", "note": "status"}.get(kind)
    return island(tag("p", text, class_=f"whence-said whence-{kind}", role=role)) if text else Markup("")


def method_descriptions(names: Sequence[str]) -> Markup:
    """Return what each method shows, and when not to trust it."""
    known = list_methods()
    rows = [
        tag("div", tag("dt", name), tag("dd", known[name].shows, " ", tag("em", known[name].beware)))
        for name in names if name in known and known[name].shows
    ]  # fmt: skip
    return island(tag("dl", *rows, class_="whence-words")) if rows else Markup("")


# -- predictions and explanations ------------------------------------------------------------------------------------


def class_probabilities(result: QueryResult) -> dict[str, float]:
    """Return the probabilities of the likeliest classes by name; empty if the model has none."""
    if not isinstance(result, ClassificationResult) or not result.explanations:
        return {}
    e = result.explanations[0]
    probabilities = e.probabilities
    if probabilities is None or probabilities.dim() != 2:
        return {}
    names = {i: e.labels.get(i, str(i)) for i in range(probabilities.shape[1])}
    if e.prediction is not None and not e.labels and e.prediction_names:
        names[int(e.prediction[0])] = e.prediction_names[0]
    likeliest = probabilities[0].topk(min(COMPARED_CLASSES, probabilities.shape[1])).indices.tolist()
    return {names[i]: float(probabilities[0, i]) for i in likeliest}


def prediction(result: QueryResult, before: Mapping[str, float]) -> Markup:
    """Return the prediction with its probabilities, each beside that of the previous input."""
    now = class_probabilities(result)
    if not now:
        return _numeric_prediction(result)
    ranked = sorted(now, key=lambda name: -now[name])[:SHOWN_CLASSES]
    first = next(iter(result.explanations[0].prediction_names), ranked[0])
    rows = [_probability_row(name, now[name], before.get(name)) for name in ranked]
    head = tag("h2", "The model says ", tag("strong", tag("bdi", first)))
    caption = tag("caption", "Probability of each answer", class_="whence-unseen")
    return island(head, tag("table", caption, *rows, class_="whence-chances"))


def _probability_row(name: str, now: float, before: float | None) -> Markup:
    """Return a table row with a bar for the probability of a class, and a mark where it was before."""
    mark = []
    change = ""
    if before is not None:
        mark.append(tag("i", style=f"left:{100 * before:.1f}%", title=f"before: {percent(before)}"))
        if abs(before - now) >= 0.005:
            change = f"was {percent(before)}"
    bar = tag("span", tag("b", style=f"width:{100 * now:.1f}%"), *mark, class_="whence-bar")
    return tag(
        "tr", tag("th", tag("bdi", name), scope="row"), tag("td", bar), tag("td", percent(now)),
        tag("td", change, class_="whence-was"),
    )  # fmt: skip


def _numeric_prediction(result: QueryResult) -> Markup:
    """Return the prediction of a model without classes: a number."""
    if not isinstance(result, ClassificationResult) or not result.explanations:
        return Markup("")
    e = result.explanations[0]
    is_similarity = e.target_names == (SIMILARITY,)
    lead = "How well picture and text fit, as the model sees it: " if is_similarity else "The model says "
    return island(*(tag("h2", lead, tag("strong", tag("bdi", name))) for name in e.prediction_names[:1]))


def explanation_cards(results: Sequence[MethodResult]) -> Markup:
    """Return all explanations side by side, as in the HTML export, and why other methods are not applicable."""
    shown = cards(e for result in results for e in result.explanations)
    return card_section(shown, "main", _failure_messages(results))


def result_section(result: QueryResult) -> Markup:
    """Return the explanations of a result."""
    if isinstance(result, ClassificationResult):
        if result.word_explanation is None:
            return explanation_cards(result.methods)
        word = result.words[result.query.chosen].text
        card = Card(f"The word '{word}'", (view(result.word_explanation),))
        return join([card_section([card], "word"), explanation_cards(result.methods)])
    assert isinstance(result, GenerationResult | DetectionResult)
    views = tuple(view(e) for e in result.explanations)
    shown = [Card(label(views[0].target), views)] if views else []
    return card_section(shown, "chosen", _failure_messages(result.failures))


def _failure_messages(results: Sequence[MethodResult]) -> list[Markup]:
    return [message(f"{result.method}: {result.error}", "problem") for result in results if result.error]


def choices(result: QueryResult) -> Markup:
    """Return what can be chosen in a result: generated tokens, detected objects, words beside an image."""
    if isinstance(result, GenerationResult):
        return token_choices(result.generation, result.chosen)
    if isinstance(result, DetectionResult):
        return object_choices(result.objects, result.image, result.chosen)
    if isinstance(result, ClassificationResult) and result.words:
        return word_choices([p.text for p in result.words], result.query.chosen)
    return Markup("")


def placeholder() -> Markup:
    """Return what is shown before the first query."""
    return island(tag("p", "The explanation appears here.", class_="whence-nothing"))


def card_section(shown: Sequence[Card], name: str, before: Sequence[Markup] = ()) -> Markup:
    """Return cards with their legend; ``name`` is unique to each section of the page."""
    if not shown:
        return island(*before) if before else Markup("")
    medium = Medium(live=True, name=name)
    return island(
        *before, legend(shown, live=True), *(draw_card(card, medium) for card in shown), class_name=f"whence-of-{name}"
    )


def layer(e: Explanation, number: int) -> Markup:
    """Return the relevance at the input of one block."""
    if e.layers is None:
        return message(f"'{e.method}' does not say what entered each block.")
    card = Card(f"Entering layer {number}", (view(e.layer(number)),))
    return island(draw_card(card, Medium(live=True, name="layer")), class_name="whence-of-layer")


def heads(e: Explanation) -> Markup:
    """Return the relevance that each attention head carried."""
    if e.heads is None:
        return message(f"'{e.method}' does not say what each head carried.")
    lead = "Each layer has several heads, which look at the input in ways of their own. Point at one to read its share."
    return island(tag("h3", "What each head carried"), tag("p", lead), section(e.table("heads")))


def ledger(e: Explanation) -> Markup:
    """Return the share of the target's value that each layer conserved."""
    shown = view(e)
    if not shown.block_relevance:
        return message(
            f"'{e.method}' keeps no books: it does not hand back the answer's value, so there is nothing to add up."
        )
    absorbed = tag("details", tag("summary", "What took the rest"), draw_absorbed(shown))
    return island(
        tag("h3", "How much of the answer's value was kept"),
        tag("p", ledger_summary(shown.block_relevance[0])),
        draw_block_relevance(shown.block_relevance),
        *([absorbed] if shown.absorbed else []),
    )


def ledger_summary(kept: float) -> str:
    """Return what the conserved share means, in a sentence."""
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


def random_ranking_plot(found: Trial) -> Markup:
    """Return a plot of the insertion curve beside those of random rankings."""
    low, high = np.quantile(found.random, [0.05, 0.95], axis=0)
    top = max(1e-9, float(max(found.curve.max(), found.random.max())), 1.0)

    def path(values: Sequence[float], reverse: bool = False) -> str:
        points = [f"{300 * x:.1f} {150 * (1 - y / top):.1f}" for x, y in zip(found.shares, values, strict=True)]
        return "L".join(reversed(points) if reverse else points)

    grid = [tag("path", d=f"M0 {y}H300", class_="whence-grid") for y in (0, 75, 150)]
    drawing = tag(
        "svg",
        *grid,
        tag("path", d=f"M{path(low.tolist())}L{path(high.tolist(), reverse=True)}Z", class_="whence-band"),
        tag("path", d=f"M{path(found.random.mean(0).tolist())}", class_="whence-line whence-chance"),
        tag("path", d=f"M{path(found.curve.tolist())}", class_="whence-line whence-own"),
        viewBox="-2 -4 304 158", class_="whence-trial", role="img", aria_label=str(found),
    )  # fmt: skip
    vertical = tag("div", *(tag("span", percent(top * share)) for share in (1, 0.5, 0)), class_="whence-up")
    horizontal = tag("div", *(tag("span", text) for text in ("none", "half", "all")), class_="whence-along")
    keys = [
        tag("span", tag("i", class_="whence-own"), "this explanation's order"),
        tag("span", tag("i", class_="whence-chance"), f"{len(found.random)} random orders: mean, and 90 % of them"),
    ]
    title = f"Probability of the target class as more {found.noun} are inserted"
    return island(
        tag("h3", "Random-ranking test"),
        tag("p", str(found)),
        tag("p", title, class_="whence-small"),
        tag("div", vertical, drawing, horizontal, class_="whence-plot"),
        tag("p", *keys, class_="whence-keys"),
    )


# -- examples and choices --------------------------------------------------------------------------------------------


def examples(model: ServedModel) -> Markup:
    """Return the examples as buttons: the beginnings of texts, thumbnails of images."""
    texts = [
        tag("button", _shorten(text), type="button", title=text, data_ask=f"text:{i}")
        for i, text in enumerate(model.example_texts)
    ]
    images = [
        tag("button", tag("img", src=_thumbnail(path), alt=name), type="button", data_ask=f"picture:{name}")
        for name, path in model.example_images.items()
    ]
    buttons = (texts if model.reads_text else []) + (images if model.reads_image else [])
    if not buttons:
        return Markup("")
    return island(tag("p", "Or try one of these", class_="whence-small"), tag("div", *buttons, class_="whence-chips"))


def token_choices(generation: Generation, chosen: int) -> Markup:
    """Return the text that a language model generated, each token a button."""
    buttons = [_button(label(text), i, chosen) for i, text in enumerate(generation.tokens)]
    lead = tag("p", "The model went on with these tokens. Choose one to see what it came from.")
    return island(tag("h2", "What the model wrote"), lead, tag("div", *buttons, class_="whence-tokens"))


def object_choices(objects: Sequence[Detection], image: ImageOrigin, chosen: int) -> Markup:
    """Return an image with the boxes of the detected objects, each a button."""
    height, width = image.image.shape[:2]
    frames = []
    for i, detection in enumerate(objects):
        left, top, right, bottom = detection.box
        box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        kind = "whence-object whence-chosen" if i == chosen else "whence-object"
        frames.append(tag("rect", tag("title", detection.label), class_=kind, data_ask=i, **box))
    photograph = tag("image", href=photo(shrink(image.image, LARGEST // 2)), width=width, height=height)
    drawing = tag("svg", photograph, *frames, viewBox=f"0 0 {width} {height}", class_="whence-picture")
    buttons = [_button(f"{one.label} ({percent(one.score)})", i, chosen) for i, one in enumerate(objects)]
    lead = "Choose an object to see what it rests on." if objects else "The model finds no object in this picture."
    return island(
        tag("h2", "What the model finds"), tag("p", lead), drawing, tag("div", *buttons, class_="whence-chips")
    )


def word_choices(words: Sequence[str], chosen: int) -> Markup:
    """Return the words of a text that comes with an image, each a button."""
    lead = tag("p", "Choose a word to see where in the picture it points.")
    buttons = [_button(label(word), i, chosen) for i, word in enumerate(words)]
    return island(lead, tag("div", *buttons, class_="whence-chips"))


def _button(text: str, number: int, chosen: int) -> Markup:
    return tag("button", text, type="button", data_ask=number, aria_pressed="true" if number == chosen else "false")


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def _thumbnail(path: object) -> str:
    from PIL import Image

    with Image.open(str(path)) as opened:
        image = opened.convert("RGB")
        image.thumbnail((128, 128))
        return photo(np.asarray(image, np.float32))
