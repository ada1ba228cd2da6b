"""What happens when something on the page is pressed, chosen or written."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr

from ..counterfactuals.html_page import section as flipped
from ..errors import InputError, WhenceError
from ..explanations.explanation import Explanation
from ..methods.registry import list_methods as all_methods
from ..render.html.markup import Markup
from . import html_fragments
from .cancellable import CancelledError, Work
from .code_snippet import code
from .model_registry import Served
from .query import SAID, Question
from .query_result import Found, Outcome
from .service import Desk

T = TypeVar("T")
Update = Any  # a value for each component that changes
Last = dict[str, Any]  # of the explanation before: the chances of each answer, and the seconds that it took
LOOK = 0.25  # seconds between looks at work that goes on
QUICK = 1.5  # seconds: what took less is explained again while the text is written
TYPES = {"html": "text/html", "png": "image/png", "json": "application/json"}


class Answering:
    """The page's answers.

    Args:
        desk: where questions are answered.
        page: the components, by name.
        folder: from which pictures are served.
    """

    def __init__(self, desk: Desk, page: Mapping[str, Any], folder: Path) -> None:
        self.desk, self.page, self.folder = desk, page, folder

    def _update(self, **changes: Any) -> Update:
        return {self.page[name]: value for name, value in changes.items()}

    # -- asking ------------------------------------------------------------------------------------------------------

    def model(self, name: str, before: str) -> Update:
        """Another model: its own inputs, examples and answers; what was shown is of the one before.

        The list also speaks up when somebody only passes by with the keys: then all stays as it is.
        """
        if name == before:
            return gr.skip()
        return self._fields(self.desk.shelf[name]) | self._empty()

    def _fields(self, served: Served, question: Question | None = None) -> Update:
        """The inputs that a model takes, filled with a question, or with the model's first example."""
        asked = question or Question(served.name, (served.texts or ("",))[0], picture=next(iter(served.pictures), ""))
        classes = [SAID, *served.labels]
        targets = [t for t in asked.targets if t in classes] or [SAID]
        picture = served.lend(asked.picture, self.folder) if asked.picture in served.pictures else None
        return self._update(
            model=served.name,
            served=served.name,
            text=gr.update(visible=served.reads_text, value=asked.text),
            second=asked.second,
            pair=gr.update(visible=served.reads_text and not served.writes, open=bool(asked.second)),
            image=gr.update(visible=served.reads_picture, value=picture),
            examples=html_fragments.examples(served),
            methods=list(asked.methods),
            targets=gr.update(visible=bool(served.labels)),
            target=gr.update(choices=classes, value=targets[0]),
            rival=gr.update(
                choices=[(html_fragments.NONE, ""), *classes], value=targets[1] if len(targets) > 1 else ""
            ),
        )

    def _empty(self) -> Update:
        return self._update(
            status="", answer="", choice="", shown=html_fragments.empty(), more=gr.update(visible=False), question=None,
            last={},
        )  # fmt: skip

    def example(self, name: str, event: gr.EventData) -> Update:
        """An example was chosen."""
        served = self.desk.shelf[name]
        kind, _, which = str(event.asked).partition(":")
        if kind == "text" and which in map(str, range(len(served.texts))):
            return self._update(text=served.texts[int(which)])
        if kind == "picture" and which in served.pictures:
            return self._update(image=served.lend(which, self.folder))
        return gr.skip()  # of the model that was chosen before

    def methods(self, names: list[str]) -> Markup:
        """Others were chosen: what they show."""
        return html_fragments.method_words(names)

    def arrive(self, address: str) -> Update:
        """The page was opened: what its link asks is filled in."""
        try:
            question = Question.from_link(address.partition("#")[2])
            if question is None:
                return gr.skip()
            served = self.desk.shelf[question.model]
            unknown = [name for name in question.methods if name not in all_methods()]
            if unknown or not question.methods:
                raise InputError(f"The link asks for a method that is not here: {', '.join(unknown) or 'none'}.")
        except WhenceError as error:
            return self._update(status=html_fragments.said(str(error), "problem"))
        return self._fields(served, question) | self._update(linked=question)

    def resume(
        self, model: str, text: str, second: str, image: str | None, methods: list[str], target: str, rival: str,
        last: Last, linked: Question | None, request: gr.Request,
    ) -> Iterator[Update]:  # fmt: skip
        """What a link asks is answered at once, as far as the link holds it."""
        if linked is None:
            yield gr.skip()
        elif self.desk.shelf[linked.model].reads_picture and not linked.picture:
            yield self._update(
                status=html_fragments.said("No link holds an uploaded picture: give it again, then explain it.")
            )
        else:
            yield from self.explain(model, text, second, image, methods, target, rival, last, linked, request)

    # -- explaining --------------------------------------------------------------------------------------------------

    def explain(
        self, model: str, text: str, second: str, image: str | None, methods: list[str], target: str, rival: str,
        last: Last, linked: Question | None, request: gr.Request,
    ) -> Iterator[Update]:  # fmt: skip
        """The button: explain it, telling how far it is."""
        targets = tuple(dict.fromkeys(t for t in (target, rival) if t))
        example = Path(image or "").name if self._is_example(model, image) else ""
        question = Question(
            model, text or "", second or "", example, "" if example else image or "", tuple(methods or ()),
            () if targets == (SAID,) else targets,
        )  # fmt: skip
        if linked is not None and question == replace(linked, upload=question.upload, chosen=-1):
            question = replace(question, chosen=linked.chosen)
        yield from self._explained(question, last, request)

    def _explained(self, question: Question, last: Last, request: gr.Request) -> Iterator[Update]:
        yield self._update(
            explain=gr.update(visible=False),
            cancel=gr.update(visible=True),
            status=html_fragments.said("Explaining", "work"),
        )
        done: list[Found] = []
        visitor, start, count = _visitor(request), time.perf_counter(), 0
        running = self.desk.start(visitor, lambda work: self.desk.answer(visitor, question, work, done.append))
        try:
            for words in running.watched(LOOK):
                fresh = {"shown": html_fragments.explained(done)} if len(done) > count else {}
                count = len(done)
                yield self._update(status=html_fragments.said(words, "work"), **fresh)
        finally:
            running.work.cancel()  # the visitor may have left
        outcome, problem = self._guarded(running.result)
        update = self._update(status=problem)
        if outcome is not None:
            now: Last = {"chances": html_fragments.chances(outcome), "seconds": time.perf_counter() - start}
            update |= self._shown(outcome, last.get("chances", {})) | self._update(last=now)
        yield update | self._update(explain=gr.update(visible=True), cancel=gr.update(visible=False))

    def follow(
        self, model: str, text: str, second: str, image: str | None, methods: list[str], target: str, rival: str,
        last: Last, linked: Question | None, request: gr.Request,
    ) -> Iterator[Update]:  # fmt: skip
        """The text is being written: explain it again, if the last explanation was quick."""
        if text.strip() and last.get("seconds", QUICK) < QUICK:
            yield from self.explain(model, text, second, image, methods, target, rival, last, linked, request)
        else:
            yield gr.skip()

    def _is_example(self, model: str, image: str | None) -> bool:
        """Whether a picture is one of the model's examples: Gradio hands on a copy of it, under the same name."""
        if not image:
            return False
        known = self.desk.shelf[model].pictures.get(Path(image).name)
        try:
            return known is not None and known.read_bytes() == Path(image).read_bytes()
        except OSError:
            return False

    def _guarded(self, do: Callable[[], T]) -> tuple[T | None, Markup]:
        """What it came to, or what is said instead."""
        try:
            return self.desk.guarded(do), Markup("")
        except WhenceError as error:
            return None, html_fragments.said(str(error), "note" if isinstance(error, CancelledError) else "problem")

    def _shown(self, outcome: Outcome, before: Mapping[str, float]) -> Update:
        question = outcome.question
        served, names = self.desk.shelf[question.model], outcome.names
        update = self._update(
            answer=html_fragments.answer(outcome, before),
            choice=html_fragments.choice(outcome),
            shown=html_fragments.shown(outcome),
            more=gr.update(visible=bool(names)),
            which=gr.update(choices=names, value=names[0] if names else None, visible=len(names) > 1),
            flipped="",
            use=gr.update(visible=False),
            code=code(outcome, served),
            mark=question.link(),
            question=question,
        )
        return update | (self._closer(outcome.explanations[0]) if names else {})

    def cancel(self, request: gr.Request) -> None:
        """The other button."""
        self.desk.cancel(_visitor(request))

    def choose(self, question: Question | None, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        """A token, an object or a word was chosen."""
        chosen = str(event.asked)
        if question is None or not chosen.isdecimal():
            yield gr.skip()
        else:
            yield from self._explained(replace(question, chosen=int(chosen[:9])), {}, request)

    # -- looking closer ----------------------------------------------------------------------------------------------

    def _now(self, question: Question, request: gr.Request) -> tuple[Outcome | None, Markup]:
        """The outcome of a question that was answered before: kept, or made again."""
        visitor = _visitor(request)
        running = self.desk.start(visitor, lambda work: self.desk.answer(visitor, question, work), "closer")
        return self._guarded(running.result)

    def _one(self, question: Question | None, which: str | None, request: gr.Request) -> Explanation | None:
        """The explanation that is looked at."""
        outcome = None if question is None else self._now(question, request)[0]
        if outcome is None or not outcome.explanations:
            return None
        return outcome.explanations[outcome.names.index(which) if which in outcome.names else 0]

    def _closer(self, e: Explanation) -> Update:
        count = 0 if e.layers is None else e.layers.shape[1]
        return self._update(
            ledger=html_fragments.ledger(e),
            trial="",
            layer=gr.update(maximum=max(count - 1, 1), value=0, visible=count > 1),
            layered=html_fragments.layer(e, 0),
            heads=html_fragments.heads(e),
        )

    def closer(self, question: Question | None, which: str, request: gr.Request) -> Update:
        """Another of the explanations."""
        e = self._one(question, which, request)
        return gr.skip() if e is None else self._closer(e)

    def layer(self, question: Question | None, which: str, layer: float, request: gr.Request) -> Markup:
        """Another layer."""
        e = self._one(question, which, request)
        return Markup("") if e is None else html_fragments.layer(e, int(layer))

    def trial(self, question: Question | None, which: str, request: gr.Request) -> Iterator[Update]:
        """The explanation against random orders."""
        e = self._one(question, which, request)
        if question is None or e is None:
            yield gr.skip()
            return

        def do(work: Work, visitor: str) -> Markup:
            return html_fragments.trial_of(self.desk.trial(visitor, question, work, e))

        yield from self._worked("trial", "attempt", request, do)

    def flip(self, question: Question | None, request: gr.Request) -> Iterator[Update]:
        """The smallest change that flips the answer."""
        if question is None:
            yield gr.skip()
            return
        texts: list[str] = []

        def do(work: Work, visitor: str) -> Markup:
            found = self.desk.flip(visitor, question, work)
            if found.found and isinstance(found.changed, str):
                texts.append(found.changed)
            return html_fragments.island(flipped(found))

        yield self._update(use=gr.update(visible=False))
        yield from self._worked("flipped", "flip", request, do)
        yield self._update(use=gr.update(visible=bool(texts)), changed="".join(texts))

    def _worked(
        self, where: str, button: str, request: gr.Request, do: Callable[[Work, str], Markup]
    ) -> Iterator[Update]:
        """Work that a button began and another ends; what comes of it is shown below them."""
        visitor = _visitor(request)
        busy = {button: gr.update(visible=False), f"{button}_cancel": gr.update(visible=True)}
        idle = {button: gr.update(visible=True), f"{button}_cancel": gr.update(visible=False)}
        running = self.desk.start(visitor, lambda work: do(work, visitor), where)
        try:
            yield self._update(**{where: html_fragments.said("Waiting for a turn", "work")}, **busy)
            for words in running.watched(LOOK):
                yield self._update(**{where: html_fragments.said(words, "work")})
        finally:
            running.work.cancel()
        found, problem = self._guarded(running.result)
        yield self._update(**{where: found or problem}, **idle)

    def save(self, ending: str) -> Callable[..., Update]:
        """A file of all that is shown, for the browser to keep."""

        def made(question: Question | None, request: gr.Request) -> Update:
            if question is None:
                return gr.skip()
            visitor = _visitor(request)
            running = self.desk.start(visitor, lambda work: self.desk.file(visitor, question, work, ending), "save")
            content, problem = self._guarded(running.result)
            if content is None:
                return self._update(made=None, status=problem)
            file = {"name": f"whence.{ending}", "type": TYPES[ending], "content": base64.b64encode(content).decode()}
            return self._update(made=file, status="")

        return made


def _visitor(request: gr.Request) -> str:
    return str(getattr(request, "session_hash", None) or getattr(getattr(request, "client", None), "host", "") or "?")
