"""The lines of Python that do what the page did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .model_registry import Served
from .query import Question
from .query_result import Classified, Detected, Outcome, Written

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
        imports.append("from whence.models import MODELS")
    if isinstance(outcome, Detected) and outcome.objects:
        imports.append("from whence.localisation import detect")
    load = f"explainer = whence.Explainer.from_pretrained({served.written})"
    return "\n".join([*imports, load, *_asked(outcome, served, given)])


def _asked(outcome: Outcome, served: Served, given: str) -> list[str]:
    question = outcome.question
    if isinstance(outcome, Written):
        token = f"[{outcome.chosen}]" if question.chosen >= 0 or len(question.methods) > 1 else ""
        most = len(outcome.generation)
        return _by_each(question, f"explainer.generate({given}, method={{}}, max_new_tokens={most}){token}")
    if isinstance(outcome, Detected) and outcome.objects:
        found = f"found = detect(explainer, {given})[{outcome.chosen}]"
        return [found, *_by_each(question, f"explainer({given}, {{}}, found.logit)")]
    if isinstance(outcome, Classified) and outcome.word is not None:
        return [_word(outcome, served, given)]
    asked = f", {question.wanted()!r}" if question.wanted() != [None] else ""
    return [f"explainer.compare({given}, {list(question.methods)!r}{asked}).save({FILE})"]


def _by_each(question: Question, asked: str) -> list[str]:
    """What is asked, by one method or by each of several."""
    names = list(question.methods)
    if len(names) == 1:
        return [f"{asked.replace('{}', repr(names[0]))}.save({FILE})"]
    return [f"for method in {names!r}:", f"    {asked.replace('{}', 'method')}.save(f'why-{{method}}.html')"]


def _word(outcome: Classified, served: Served, given: str) -> str:
    """Where one word points, as :func:`~whence.app.query_result.of_word` asks it."""
    word = outcome.words[outcome.question.chosen]
    if served.explainer.compares:
        alone = _given(replace(outcome.question, text=word.text, second=""), served)
        return f"explainer({alone}, 'generic-attention').save({FILE})"
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
