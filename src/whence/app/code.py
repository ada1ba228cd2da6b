"""The lines of Python that do what the page did."""

from __future__ import annotations

from pathlib import Path

from ..words import Piece
from .outcome import Classified, Detected, Outcome, Written
from .question import Question
from .shelf import Served

FILE = "'why.html'"


def code(outcome: Outcome, served: Served) -> str:
    """A program that saves what is shown, to be copied.

    Example:
        >>> print(code(outcome, served))
        import whence
        explainer = whence.Explainer.from_pretrained('mine')
        explainer.compare('a gripping film', ['conservative-lrp']).save('why.html')
    """
    question = outcome.question
    imports = ["import whence"]
    given = _given(question, served)
    if "MODELS" in served.written + given:
        imports.append("from whence.demo import MODELS")
    if isinstance(outcome, Detected) and outcome.objects:
        imports.append("from whence.localisation import detect")
    load = f"explainer = whence.Explainer.from_pretrained({served.written})"
    return "\n".join([*imports, load, *_asked(outcome, given, served.explainer.compares)])


def _asked(outcome: Outcome, given: str, compares: bool) -> list[str]:
    question = outcome.question
    method = repr(question.methods[0])
    if isinstance(outcome, Written):
        token = f"[{question.chosen}]" if question.chosen >= 0 else ""
        most = len(outcome.generation)
        return [f"explainer.generate({given}, method={method}, max_new_tokens={most}){token}.save({FILE})"]
    if isinstance(outcome, Detected):
        if not outcome.objects:
            return [f"explainer({given}, {method}).save({FILE})"]
        found = f"found = detect(explainer, {given})[{outcome.chosen}]"
        return [found, f"explainer({given}, {method}, found.logit).save({FILE})"]
    if isinstance(outcome, Classified) and outcome.word is not None:
        return [_word(outcome.words[question.chosen], given, compares)]
    asked = f", {question.wanted()!r}" if question.wanted() != [None] else ""
    return [f"explainer.compare({given}, {list(question.methods)!r}{asked}).save({FILE})"]


def _word(word: Piece, given: str, compares: bool) -> str:
    """Where one word points, as :func:`~whence.app.outcome.of_word` asks it."""
    if compares:
        return f"explainer({{**{given}, 'text': {word.text!r}}}, 'generic-attention').save({FILE})"
    return f"explainer({given}, 'generic-attention', token={word.positions[0]}).save({FILE})"


def _given(question: Question, served: Served) -> str:
    """The input as it is written in Python; a picture by the name of its file."""
    words = repr((question.text, question.second)) if question.second.strip() else repr(question.text)
    if not served.reads_picture:
        return words
    if question.upload:
        picture = repr(Path(question.upload).name)
    elif served.shipped:
        picture = f'{served.written} / "examples" / {question.picture!r}'
    else:
        picture = repr(f"{served.source}/examples/{question.picture}")
    return f"{{'image': {picture}, 'text': {words}}}" if served.reads_text else picture
